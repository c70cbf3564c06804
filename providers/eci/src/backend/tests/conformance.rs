//! The engine's suite with this backend and the emulator, over HTTP on connections in memory: the suite runs on a paused clock, which cannot
//! wait for sockets.

#![expect(clippy::disallowed_methods, reason = "the tasks of a test end with its runtime")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use vk_container_group::{
    GroupBackend,
    backend::{
        Action, CallError, CallResult, Caps, ContainerState, Creation, Deletion, GroupRef, GroupStats,
        Health, LogRange, Observed, Owner, Page, Plan, Price, Rejection, ResolvedPod, Scope, Size, Update,
    },
    cloud::{CachedCredentials, Client, Credentials, Endpoint, Limits, alibaba::Api, client::PlainHttp},
    conformance::{SeenGroup, TestCloud},
    fake::{CallFaults, Fault},
    identity::{self, Identity},
    plan::policy::Choices,
};
use vk_provider::ability::{ExecOptions, Started};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::cloud::eci::{AccessKey, EciEmulator, Options};

use super::secrets::{SECRET_KEY, keep_journal_if_asked, trace_if_asked};
use crate::{
    api::{EciApi, VERSION},
    backend::{BackendOptions, EciBackend, caps},
    config::{PriceList, Prices},
    translate::{EciRequest, Translator},
};

/// What the events that a test adds say. Others are the emulator's own, which the suite does not expect.
const SAID: &str = "said the test";
/// States in which a group costs nothing.
const ENDED: [&str; 4] = ["Succeeded", "Failed", "ScheduleFailed", "Expired"];

/// The emulator, and what the suite does to it.
#[derive(Clone)]
pub(super) struct EmulatedCloud(Arc<Inner>);

struct Inner {
    emulator: Arc<EciEmulator>,
    backend: EciBackend,
    api: EciApi,
    clock_error: Mutex<SignedDuration>,
    faults: CallFaults,
}

/// The backend with the faults of the suite.
#[derive(Clone)]
pub(super) struct FaultyBackend(Arc<Inner>);

// === impl EmulatedCloud ===

impl EmulatedCloud {
    pub(super) fn start(clock: Clock) -> Self {
        Self::start_with(clock, false, false)
    }

    /// An emulator that throttles calls as the vendor does.
    pub(super) fn start_with_rate_limits(clock: Clock) -> Self {
        Self::start_with(clock, false, true)
    }

    /// An emulator, and a backend that replaces files or does not.
    pub(super) fn start_with(clock: Clock, replaces_files: bool, limits_rates: bool) -> Self {
        trace_if_asked();
        let keys = [("testid".to_owned(), AccessKey::new(SECRET_KEY))].into();
        let options = Options { keys, limits_rates, clock: clock.clone(), ..Options::new() };
        let emulator = EciEmulator::start(options).now_or_never().unwrap().unwrap();
        emulator.change_settings(|settings| {
            settings.timing.scheduling = SignedDuration::from_secs(2);
            settings.timing.pulling = SignedDuration::from_secs(3);
            settings.timing.stopping = SignedDuration::from_secs(5);
        });
        let emulator = Arc::new(emulator);
        let served = Arc::clone(&emulator);
        let client = Client::over(Limits::default(), move || {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            tokio::spawn(served.serve(theirs));
            Box::new(ours)
        });
        let key = Arc::new(Credentials::new("testid", SECRET_KEY));
        let credentials = CachedCredentials::new(key, clock.clone(), StdRng::seed_from_u64(1));
        let endpoint = Endpoint::parse("http://127.0.0.1", PlainHttp::Loopback).unwrap();
        let api = Api::new(client.clone(), endpoint, VERSION, credentials, clock, StdRng::seed_from_u64(2));
        let api = EciApi::new(api, "cn-hangzhou");
        let backend = EciBackend::new(BackendOptions {
            api: api.clone(),
            client,
            translator: Translator {
                v_switches: vec!["vsw-a".to_owned(), "vsw-b".to_owned()],
                is_random: false,
                security_group: "sg-1".to_owned(),
                resource_group: None,
                cluster_dns: vec!["10.96.0.10".parse().unwrap()],
                cluster_domain: "cluster.local".to_owned(),
                choices: Choices::default(),
                replaces_files,
            },
            prices: Prices::List(PriceList {
                cpu_hour: 0.049,
                memory_gib_hour: 0.0061,
                currency: "USD".to_owned(),
            }),
            with_go_groups: false,
            supervisor: Supervisor::new(),
        });
        Self(Arc::new(Inner {
            emulator,
            backend,
            api,
            clock_error: Mutex::new(SignedDuration::ZERO),
            faults: CallFaults::default(),
        }))
    }

    /// The emulator itself.
    pub(super) fn emulator(&self) -> &EciEmulator {
        &self.0.emulator
    }

    /// The ids of the groups of a pod.
    pub(super) fn of_pod(&self, uid: &str) -> Vec<String> {
        let groups = self.0.emulator.groups().into_iter();
        let of_pod =
            groups.filter(|group| group.tags.iter().any(|(key, value)| key == "vk-uid" && value == uid));
        of_pod.map(|group| group.id).collect()
    }
}

#[async_trait]
impl TestCloud for EmulatedCloud {
    type Backend = FaultyBackend;

    fn backend(&self) -> Arc<FaultyBackend> {
        Arc::new(FaultyBackend(Arc::clone(&self.0)))
    }

    fn faults(&self) -> &CallFaults {
        &self.0.faults
    }

    fn set_visible(&self, visible: bool) {
        for action in
            ["DescribeContainerGroups", "DescribeContainerGroupStatus", "DescribeContainerGroupEvents"]
        {
            self.0.emulator.deny(action, !visible);
        }
    }

    fn set_lag(&self, lag: Duration) {
        let lag = SignedDuration::try_from(lag).unwrap();
        self.0.emulator.change_settings(|settings| settings.timing.lag = lag);
    }

    fn set_page(&self, groups: usize) {
        self.0.api.set_page(groups);
    }

    fn set_clock_error(&self, error: SignedDuration) {
        *self.0.clock_error.lock() = error;
    }

    fn set_start(&self, start: Duration) {
        let start = SignedDuration::try_from(start).unwrap();
        self.0.emulator.change_settings(|settings| {
            settings.timing.scheduling = start;
            settings.timing.pulling = SignedDuration::ZERO;
        });
    }

    fn seen_groups(&self) -> Vec<SeenGroup> {
        let groups = self.0.emulator.groups().into_iter();
        let paid = groups.filter(|group| !ENDED.contains(&group.status.as_str()));
        paid.filter_map(|group| {
            let tags = group.tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            Some(SeenGroup {
                owner: identity::read_tags(tags)?,
                deleting: group.status == "Terminating",
                group: GroupRef::new(group.id, group.name),
            })
        })
        .collect()
    }

    fn vanish(&self, uid: &str) {
        for id in self.of_pod(uid) {
            assert!(self.0.emulator.vanish(&id));
        }
    }

    fn preempt(&self, uid: &str) {
        for id in self.of_pod(uid) {
            assert!(self.0.emulator.reclaim(&id));
        }
    }

    fn warn(&self, uid: &str, reason: &str) {
        for id in self.of_pod(uid) {
            assert!(self.0.emulator.add_event(&id, reason, SAID));
        }
    }

    fn add_group(&self, owner: &Owner) -> GroupRef {
        let name = identity::name(&owner.pod.uid, owner.attempt);
        let tags = Identity::new(Vec::new(), caps().tags).unwrap().tags(owner);
        let mut parameters = vec![
            ("RegionId".to_owned(), "cn-hangzhou".to_owned()),
            ("ContainerGroupName".to_owned(), name.clone()),
            ("SecurityGroupId".to_owned(), "sg-1".to_owned()),
            ("VSwitchId".to_owned(), "vsw-a".to_owned()),
            ("Container.1.Name".to_owned(), "main".to_owned()),
            ("Container.1.Image".to_owned(), "image:1".to_owned()),
        ];
        for (at, (key, value)) in tags.into_iter().enumerate() {
            parameters.push((format!("Tag.{}.Key", at + 1), key));
            parameters.push((format!("Tag.{}.Value", at + 1), value));
        }
        let id = self.0.emulator.create(&parameters).unwrap_or_else(|error| panic!("{error:?}"));
        GroupRef::new(id, name)
    }

    fn failed_calls(&self) -> u64 {
        let throttled: u64 = self.0.emulator.calls().values().map(|count| count.throttled).sum();
        self.0.faults.failed_calls() + throttled
    }
}

// === impl FaultyBackend ===

impl FaultyBackend {
    /// Makes a call with its fault. `later` carries it out in the background.
    async fn call<T>(
        &self,
        action: Action,
        call: impl Future<Output = CallResult<T>> + Send,
        later: impl FnOnce(Duration) + Send,
    ) -> CallResult<T> {
        match self.0.faults.begin(action) {
            None => call.await,
            Some(Fault::Refused(class)) => Err(CallError::new(class, "the test lets it fail")),
            Some(Fault::AnswerLost) => {
                call.await?;
                Err(CallError::ambiguous("the test has lost the answer"))
            }
            Some(Fault::CarriedOutLater(delay)) => {
                later(delay);
                Err(CallError::ambiguous("the test carries it out later"))
            }
            Some(Fault::Hangs) => {
                drop(call.await);
                std::future::pending().await
            }
            Some(Fault::Panics) => {
                drop(call.await);
                panic!("the test lets it panic")
            }
        }
    }

    async fn read<T>(
        &self,
        action: Action,
        call: impl Future<Output = CallResult<T>> + Send,
    ) -> CallResult<T> {
        self.call(action, call, |_| panic!("reads are not carried out later")).await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        keep_journal_if_asked(&self.emulator);
    }
}

impl Inner {
    /// Removes the emulator's own events, and changes the times by the error of the cloud's clock. A service would refuse requests with wrong
    /// times: these are the times in its answers.
    fn adapt(&self, observed: &mut Observed) {
        observed.events.retain(|event| event.message == SAID);
        let error = *self.clock_error.lock();
        let move_time = |time: &mut Option<Timestamp>| *time = time.map(|time| time + error);
        let Observed { created, started, finished, .. } = observed;
        [created, started, finished].into_iter().for_each(move_time);
        observed.events.iter_mut().for_each(|event| move_time(&mut event.time));
        for container in observed.containers.iter_mut().chain(&mut observed.init_containers).flatten() {
            match &mut container.state {
                Some(ContainerState::Running { started }) => move_time(started),
                Some(ContainerState::Terminated(ended)) => {
                    move_time(&mut ended.started);
                    move_time(&mut ended.finished);
                }
                Some(ContainerState::Waiting { .. }) | None => {}
            }
        }
    }
}

#[async_trait]
impl GroupBackend for FaultyBackend {
    type Request = EciRequest;

    fn caps(&self) -> &Caps {
        self.0.backend.caps()
    }

    fn translate(&self, pod: &ResolvedPod) -> Result<Plan<EciRequest>, Rejection> {
        self.0.backend.translate(pod)
    }

    async fn create(&self, creation: &Creation<'_, EciRequest>) -> CallResult<Option<GroupRef>> {
        let inner = Arc::clone(&self.0);
        let (plan, owner) = (creation.plan.clone(), creation.owner.clone());
        let (name, tags, token) =
            (creation.name.to_owned(), creation.tags.to_vec(), creation.token.to_owned());
        let placement = creation.placement.cloned();
        let later = |delay: Duration| {
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let (name, token) = (name.as_str(), token.as_str());
                let creation = Creation {
                    plan: &plan,
                    owner: &owner,
                    name,
                    tags: &tags,
                    token,
                    placement: placement.as_ref(),
                };
                inner.backend.create(&creation).await.unwrap();
            });
        };
        self.call(Action::Create, self.0.backend.create(creation), later).await
    }

    async fn observe(&self, scope: &Scope, page: Option<&str>) -> CallResult<Page> {
        let faults = &self.0.faults;
        let mut found = self.read(Action::Observe, self.0.backend.observe(scope, page)).await?;
        found.groups.iter_mut().for_each(|observed| self.0.adapt(observed));
        if scope.name.is_none() {
            let number = faults.begin_page(page)?;
            faults.end_page(number, page, &mut found);
        }
        faults.filter(&mut found);
        Ok(found)
    }

    async fn detail(&self, groups: &[GroupRef]) -> CallResult<Vec<Observed>> {
        let mut found = self.read(Action::Detail, self.0.backend.detail(groups)).await?;
        for observed in &mut found {
            self.0.adapt(observed);
        }
        Ok(found)
    }

    async fn delete(&self, group: &GroupRef, grace: Duration) -> CallResult<Deletion> {
        self.read(Action::Delete, self.0.backend.delete(group, grace)).await
    }

    async fn probe(&self) -> CallResult<Health> {
        self.read(Action::Probe, self.0.backend.probe()).await
    }

    async fn changes(&self, scope: &Scope, before: Duration, page: Option<&str>) -> CallResult<Page> {
        let mut page = self.read(Action::Changes, self.0.backend.changes(scope, before, page)).await?;
        page.groups.iter_mut().for_each(|observed| self.0.adapt(observed));
        self.0.faults.filter(&mut page);
        Ok(page)
    }

    async fn logs(&self, group: &GroupRef, container: &str, range: &LogRange) -> CallResult<Bytes> {
        self.read(Action::Logs, self.0.backend.logs(group, container, range)).await
    }

    async fn exec(
        &self,
        group: &GroupRef,
        container: &str,
        command: &[String],
        options: &ExecOptions,
    ) -> CallResult<Started> {
        self.read(Action::Exec, self.0.backend.exec(group, container, command, options)).await
    }

    async fn stats(&self, groups: &[GroupRef]) -> CallResult<Vec<GroupStats>> {
        self.read(Action::Stats, self.0.backend.stats(groups)).await
    }

    async fn update(&self, group: &GroupRef, update: &Update<'_, EciRequest>) -> CallResult<()> {
        self.read(Action::Update, self.0.backend.update(group, update)).await
    }

    async fn price(&self, size: &Size) -> CallResult<Option<Price>> {
        self.read(Action::Price, self.0.backend.price(size)).await
    }
}

vk_container_group::conformance!(EmulatedCloud::start);
