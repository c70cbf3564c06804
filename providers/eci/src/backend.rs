//! ECI as the engine sees it.

mod metrics;
pub(crate) mod price;
#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use vk_container_group::{
    GroupBackend,
    backend::{
        Action, CallError, CallResult, Caps, Class, Creation, Deletion, ExecLimits, GroupRef, GroupStats,
        Health, Idempotency, LogLimits, LogRange, Naming, Observed, Page, Plan, Price, Rate, Rejection,
        ResolvedPod, Scope, Size, TagLimits, Update, Updates, Usage,
    },
    cloud::Client,
    identity,
};
use vk_provider::{
    Quantity,
    ability::{ExecOptions, Started},
};
use vk_supervisor::Supervisor;

use crate::{
    api::{EciApi, GroupQuery, LogQuery, PAGE, Parameters, flatten},
    config::Prices,
    factory::AccountBudget,
    observe, stream,
    translate::{EciRequest, Spec, Translator, parse_spec},
};

/// What the token of a page begins with that lists groups of the Go provider.
const GO_PAGES: &str = "go:";
/// The page of the feed of changes that lists events.
const EVENT_PAGE: &str = "events:";
/// The feed shows events from this many seconds on. When it is read more often, something is changing, and the details of that show events.
const SLOW_FEED: u64 = 35;
/// The longest time that the feed of changes covers.
const LONGEST_FEED: u64 = 24 * 3600;

/// ECI in one region.
#[derive(Clone, Debug)]
pub(crate) struct EciBackend {
    caps: Caps,
    api: EciApi,
    client: Client,
    translator: Translator,
    prices: Prices,
    /// Whether groups of the Go provider can be ours: the cluster's name is one that it could have.
    with_go_groups: bool,
    supervisor: Supervisor,
    /// Kept for as long as the node.
    _account: Option<Arc<AccountBudget>>,
}

/// What a backend consists of.
#[derive(Debug)]
pub(crate) struct BackendOptions {
    /// The API.
    pub(crate) api: EciApi,
    /// For connections to commands.
    pub(crate) client: Client,
    /// Translates pods.
    pub(crate) translator: Translator,
    /// What groups cost.
    pub(crate) prices: Prices,
    /// Whether groups of the Go provider can be ours.
    pub(crate) with_go_groups: bool,
    /// Runs the connections to commands.
    pub(crate) supervisor: Supervisor,
}

/// The limits of the service.
pub(crate) fn caps() -> Caps {
    let by_minute = |calls: f64, burst: f64| Rate { per_second: calls / 60.0, burst };
    Caps {
        naming: Naming::Assigned,
        idempotency: Idempotency::Token,
        consistency: Duration::from_secs(10),
        feed: true,
        detail_batch: PAGE,
        stats_batch: Some(PAGE),
        tags: TagLimits { count: 20, key: 64, value: 128 },
        logs: Some(LogLimits { lines: 2000, bytes: 1 << 20, stamped: true, previous: true }),
        exec: Some(ExecLimits { arguments: 20, characters: 256 }),
        updates: Updates { images: true, resources: true, files: false },
        rates: BTreeMap::from([
            // 20 a second with a burst of 100, and 1,000 a minute.
            (Action::Create, by_minute(1000.0, 100.0)),
            (Action::Delete, by_minute(1000.0, 100.0)),
            (Action::Update, by_minute(1000.0, 100.0)),
            (Action::Price, by_minute(1000.0, 20.0)),
            // The same call of the service.
            (Action::Observe, by_minute(1000.0, 60.0)),
            (Action::Detail, by_minute(1000.0, 60.0)),
            (Action::Changes, by_minute(10_000.0, 100.0)),
            (Action::Stats, by_minute(2000.0, 60.0)),
            (Action::Logs, by_minute(500.0, 40.0)),
            (Action::Exec, by_minute(500.0, 40.0)),
        ]),
        deadline: Duration::from_secs(45),
    }
}

// === impl EciBackend ===

impl EciBackend {
    pub(crate) fn new(options: BackendOptions) -> Self {
        let BackendOptions { api, client, translator, prices, with_go_groups, supervisor } = options;
        let mut caps = caps();
        caps.updates.files = translator.replaces_files;
        Self { caps, api, client, translator, prices, with_go_groups, supervisor, _account: None }
    }

    /// Keeps the budget of the account.
    #[must_use]
    pub(crate) fn keeping(self, account: Arc<AccountBudget>) -> Self {
        Self { _account: Some(account), ..self }
    }

    /// Groups of the Go provider can be ours: whoever asks for a cluster's groups may name any cluster.
    #[must_use]
    pub(crate) fn with_go_groups(self) -> Self {
        Self { with_go_groups: true, ..self }
    }

    /// Checks a request with the service, and creates nothing.
    pub(crate) async fn dry_run(&self, plan: &Plan<EciRequest>) -> CallResult<()> {
        let mut parameters = plan.request.create.clone();
        parameters.set("ContainerGroupName", "vk-dry-run");
        place(&mut parameters, plan.placements.first());
        Ok(self.api.dry_run(&parameters).await?)
    }

    async fn list(&self, scope: &Scope, tags: &[(&str, &str)], page: Option<&str>) -> CallResult<Page> {
        let query =
            GroupQuery { name: scope.name.as_deref(), tags: tags.to_vec(), page, ..GroupQuery::default() };
        let list = self.api.groups(&query).await?;
        Ok(observe::group_page(&list, |owner| scope.contains(owner)))
    }
}

#[async_trait]
impl GroupBackend for EciBackend {
    type Request = EciRequest;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn translate(&self, pod: &ResolvedPod) -> Result<Plan<EciRequest>, Rejection> {
        self.translator.plan(pod)
    }

    async fn create(&self, creation: &Creation<'_, EciRequest>) -> CallResult<Option<GroupRef>> {
        let mut parameters = creation.plan.request.create.clone();
        parameters.set("ContainerGroupName", creation.name);
        parameters.set("ClientToken", creation.token);
        write_tags(&mut parameters, creation.tags);
        place(&mut parameters, creation.placement);
        let created = self.api.create(&parameters).await?;
        match created.container_group_id.get() {
            Some(id) => Ok(Some(GroupRef::new(id, creation.name))),
            // An answer without an error and without an id: a proxy, or a service that is not ECI.
            None => Err(CallError::ambiguous(
                "CreateContainerGroup: the answer names no group: check that the endpoint is right",
            )),
        }
    }

    async fn observe(&self, scope: &Scope, page: Option<&str>) -> CallResult<Page> {
        let node = scope.node.as_deref();
        if let Some(page) = page.and_then(|page| page.strip_prefix(GO_PAGES)) {
            let tags = identity::eci_scope_tags(&scope.cluster, node);
            let page = Some(page).filter(|page| !page.is_empty());
            let mut found = self.list(scope, &tags, page).await?;
            found.next = found.next.map(|next| format!("{GO_PAGES}{next}"));
            return Ok(found);
        }
        let tags = identity::scope_tags(&scope.cluster, node, &self.caps.tags);
        let tags: Vec<(&str, &str)> = tags.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let mut found = self.list(scope, &tags, page).await?;
        if found.next.is_none() && self.with_go_groups && scope.name.is_none() {
            found.next = Some(GO_PAGES.to_owned());
        }
        Ok(found)
    }

    async fn detail(&self, groups: &[GroupRef]) -> CallResult<Vec<Observed>> {
        let ids = groups.iter().map(|group| &*group.id).collect();
        let list = self.api.groups(&GroupQuery { ids, ..GroupQuery::default() }).await?;
        if list.container_groups.is_incomplete() {
            return Err(CallError::unavailable(
                "DescribeContainerGroups: the answer has no readable list of groups: check that the endpoint is right",
            ));
        }
        // The service may ignore a filter that it does not understand.
        let asked = |observed: &Observed| groups.iter().any(|group| group.id == observed.group.id);
        Ok(list.container_groups.iter().filter_map(observe::group).filter(asked).collect())
    }

    async fn delete(&self, group: &GroupRef, _grace: Duration) -> CallResult<Deletion> {
        // The grace period is that of the create: ECI cannot change it.
        self.api.delete(&group.id).await?;
        Ok(Deletion::Accepted)
    }

    async fn probe(&self) -> CallResult<Health> {
        let usage = self.api.usage().await?;
        let attributes = usage.attributes.get();
        let number = |name: &str| attributes.and_then(|all| all.get(name)?.0).and_then(cpus);
        let quota =
            number("UsedCpu").map(|used| Usage { resource: "cpu".to_owned(), used, limit: number("MaxCpu") });
        Ok(Health { quota: quota.into_iter().collect() })
    }

    async fn changes(&self, scope: &Scope, before: Duration, page: Option<&str>) -> CallResult<Page> {
        let tags = identity::scope_tags(&scope.cluster, scope.node.as_deref(), &self.caps.tags);
        let tags: Vec<(&str, &str)> = tags.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let seconds = before.as_secs() + u64::from(before.subsec_nanos() > 0);
        let seconds = seconds.clamp(1, LONGEST_FEED);
        if page == Some(EVENT_PAGE) {
            return Ok(observe::event_page(&self.api.events(&tags, Some(seconds)).await?));
        }
        let mut found = observe::status_page(&self.api.statuses(&tags, Some(seconds), page).await?);
        if found.next.is_none() && seconds >= SLOW_FEED {
            found.next = Some(EVENT_PAGE.to_owned());
        }
        Ok(found)
    }

    async fn logs(&self, group: &GroupRef, container: &str, range: &LogRange) -> CallResult<Bytes> {
        let query = LogQuery {
            group: &group.id,
            container,
            tail: range.tail.map(|lines| lines.clamp(1, 2000)).or(Some(2000)),
            start: range.since,
            previous: range.previous,
        };
        if range.tail == Some(0) {
            return Ok(Bytes::new());
        }
        let log = self.api.log(&query).await?;
        Ok(Bytes::from(log.content.0.unwrap_or_default()))
    }

    async fn exec(
        &self,
        group: &GroupRef,
        container: &str,
        command: &[String],
        options: &ExecOptions,
    ) -> CallResult<Started> {
        let started = self.api.exec(&group.id, container, command, options.stdin, options.tty).await?;
        let url = started.web_socket_uri.get().ok_or_else(|| {
            CallError::new(Class::Unavailable, "ExecContainerCommand: the answer has no WebSocketUri")
        })?;
        let session = stream::session(&self.client, url, options, &self.supervisor).await?;
        Ok(Started::Session(session))
    }

    async fn stats(&self, groups: &[GroupRef]) -> CallResult<Vec<GroupStats>> {
        let ids: Vec<&str> = groups.iter().map(|group| &*group.id).collect();
        let list = self.api.metrics(&ids).await?;
        Ok(metrics::group_stats(groups, &list))
    }

    async fn update(&self, group: &GroupRef, update: &Update<'_, EciRequest>) -> CallResult<()> {
        let mut parameters = update.plan.request.update.clone();
        write_tags(&mut parameters, update.tags);
        Ok(self.api.update(&group.id, &parameters).await?)
    }

    async fn price(&self, size: &Size) -> CallResult<Option<Price>> {
        match &self.prices {
            Prices::Off => Ok(None),
            Prices::List(list) => Ok(Some(price::of_list(list, size))),
            Prices::Cloud => Ok(price::of_answer(&self.api.price(&price::question(size)).await?)),
        }
    }
}

fn write_tags(parameters: &mut Parameters, tags: &[(String, String)]) {
    for (at, (key, value)) in tags.iter().enumerate() {
        parameters.set(flatten("Tag", at, "Key"), key);
        parameters.set(flatten("Tag", at, "Value"), value);
    }
}

/// Writes where the group may run.
fn place(parameters: &mut Parameters, placement: Option<&vk_container_group::backend::Placement>) {
    let Some(placement) = placement else { return };
    parameters.set_some("VSwitchId", placement.zone.as_ref());
    match placement.size.as_deref().and_then(parse_spec) {
        Some(Spec::InstanceType(name)) => parameters.set("InstanceType", name),
        Some(Spec::Size { cpu, memory, .. }) => {
            parameters.set("Cpu", price::cpus(cpu));
            parameters.set("Memory", price::gibibytes(memory));
        }
        None => {}
    }
}

fn cpus(number: f64) -> Option<Quantity> {
    (0.0..1e9).contains(&number).then(|| format!("{number}").parse().ok()).flatten()
}
