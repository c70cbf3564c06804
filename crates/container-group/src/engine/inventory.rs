//! What the cloud holds for a cluster, for people who list and remove groups. Needs no running engine.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use vk_provider::{
    Error, Result,
    inventory::{Group, Inventory, InventoryScope},
};

use crate::{
    GroupBackend,
    backend::{Action, CallError, CallResult, Class, GroupRef, Observed, Price, Scope},
    budget::Budget,
    identity,
};

/// How often a read is tried that the cloud did not answer, or refused because of too many calls.
const TRIES: u32 = 4;
/// The wait before the second try; twice as long before each further one. Somebody waits for the answer.
const RETRY: Duration = Duration::from_millis(250);
/// The same after a call that was one too many.
const RETRY_THROTTLED: Duration = Duration::from_secs(1);
/// The longest wait that the cloud can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The grace period of groups that people remove.
const GRACE: Duration = Duration::from_secs(30);
/// The most pages of a list, so that a cloud that repeats itself does not keep us for ever.
const MOST_PAGES: usize = 10_000;

/// Lists and removes the groups of a cluster on a cloud, those of the Go provider included.
///
/// It creates nothing and keeps nothing. Only groups whose tags name the cluster are shown, and only those can be removed.
#[derive(Debug)]
pub struct GroupInventory<B> {
    backend: Arc<B>,
    budget: Budget,
    /// The cluster, if the caller names none.
    cluster: Option<String>,
    prices: bool,
}

// === impl GroupInventory ===

impl<B: GroupBackend> GroupInventory<B> {
    /// The groups of this cluster by default, from the configuration or the core. `prices` says whether to ask the backend for prices.
    pub fn new(backend: Arc<B>, budget: Budget, cluster: Option<String>, prices: bool) -> Self {
        Self { backend, budget, cluster, prices }
    }

    fn scope(&self, scope: &InventoryScope) -> Result<Scope> {
        let cluster = scope.cluster.clone().or_else(|| self.cluster.clone()).filter(|name| !name.is_empty());
        let cluster = cluster.ok_or_else(|| {
            Error::invalid(
                "the cluster is not known: set clusterName in the configuration, or give --cluster-name",
            )
        })?;
        let node = scope.node.as_deref().map(Into::into);
        Ok(Scope { cluster: cluster.into(), node, name: None })
    }

    /// Makes one call within the budget and the deadline.
    async fn call<T>(&self, action: Action, call: impl Future<Output = CallResult<T>>) -> CallResult<T> {
        self.budget.acquire(action).await;
        let deadline = self.backend.caps().deadline;
        let result = tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| {
            let (name, seconds) = (action.name(), deadline.as_secs());
            Err(CallError::ambiguous(format!(
                "the cloud has not answered the call {name} within {seconds} s"
            )))
        });
        self.budget.record(action, &result);
        result
    }

    /// Makes a call that changes nothing, again if that may help.
    async fn read<T, F>(&self, action: Action, call: impl Fn() -> F) -> CallResult<T>
    where
        F: Future<Output = CallResult<T>>,
    {
        let mut factor = 1;
        for _ in 1..TRIES {
            match self.call(action, call()).await {
                Err(error) => match error.class {
                    Class::Throttled { after } => {
                        let wait = after.unwrap_or(RETRY_THROTTLED * factor).min(LONGEST_WAIT);
                        tokio::time::sleep(wait).await;
                    }
                    Class::Unavailable | Class::Ambiguous => tokio::time::sleep(RETRY * factor).await,
                    _ => return Err(error),
                },
                answer => return answer,
            }
            factor *= 2;
        }
        self.call(action, call()).await
    }

    /// All groups in the scope with everything that the cloud says of them, or an error.
    async fn observe(&self, scope: &Scope) -> CallResult<Vec<Observed>> {
        let mut found: BTreeMap<Arc<str>, Observed> = BTreeMap::new();
        let (mut page, mut seen) = (None, BTreeSet::new());
        for _ in 0..MOST_PAGES {
            let answer = self.read(Action::Observe, || self.backend.observe(scope, page.as_deref())).await?;
            if answer.incomplete {
                return Err(CallError::unavailable("the list of groups is incomplete"));
            }
            for one in answer.groups {
                found.insert(Arc::clone(&one.group.id), one);
            }
            match answer.next {
                None => return self.complete(scope, found).await,
                Some(next) if seen.insert(next.clone()) => page = Some(next),
                Some(_) => break,
            }
        }
        Err(CallError::unavailable("the list of groups does not end: the cloud repeats its pages"))
    }

    /// Asks for what the list does not show, and leaves out what is not ours.
    async fn complete(
        &self,
        scope: &Scope,
        mut found: BTreeMap<Arc<str>, Observed>,
    ) -> CallResult<Vec<Observed>> {
        let is_enough = |one: &Observed| {
            one.complete
                || (one.owner.is_some() && one.state.is_some() && one.created.is_some() && one.size.is_some())
        };
        let is_foreign = |one: &Observed| one.owner.as_ref().is_some_and(|owner| !scope.contains(owner));
        let asked: Vec<GroupRef> = found
            .values()
            .filter(|one| !is_foreign(one) && !is_enough(one))
            .map(|one| one.group.clone())
            .collect();
        for some in asked.chunks(self.backend.caps().detail_batch.max(1)) {
            for newer in self.read(Action::Detail, || self.backend.detail(some)).await? {
                if let Some(before) = found.remove(&newer.group.id) {
                    found.insert(Arc::clone(&newer.group.id), before.updated_by(newer));
                }
            }
        }
        let is_ours = |one: &Observed| one.owner.as_ref().is_some_and(|owner| scope.contains(owner));
        Ok(found.into_values().filter(is_ours).collect())
    }

    /// The price of each size, by its name. A price that the cloud does not say is not known.
    async fn prices(&self, groups: &[Observed]) -> HashMap<String, Price> {
        let mut prices = HashMap::new();
        if !self.prices {
            return prices;
        }
        let sizes: BTreeMap<String, _> =
            groups.iter().filter_map(|one| one.size.as_ref()).map(|size| (size.to_string(), size)).collect();
        for (name, size) in sizes {
            match self.read(Action::Price, || self.backend.price(size)).await {
                Ok(Some(price)) => drop(prices.insert(name, price)),
                Ok(None) => {}
                Err(error) => tracing::warn!(size = name, %error, "the price of a size is not known"),
            }
        }
        prices
    }
}

/// A group for people.
fn shown(observed: Observed, prices: &HashMap<String, Price>) -> Group {
    let state = observed.state.map_or("Unknown", crate::backend::GroupState::name);
    let has_ended = observed.state.is_some_and(crate::backend::GroupState::has_ended);
    let owner = observed.owner.as_ref();
    let is_go =
        owner.is_some_and(|owner| *observed.group.name != *identity::name(&owner.pod.uid, owner.attempt));
    // A state that is new to us is not lost.
    let unclear = observed.malformed.iter().filter(|_| observed.state.is_none());
    let remarks = is_go.then_some("created by the Go provider").into_iter();
    let remarks: Vec<&str> = remarks.chain(unclear.map(String::as_str)).collect();
    Group {
        name: Some(observed.group.name.to_string()).filter(|name| **name != *observed.group.id),
        cluster: owner.map(|owner| owner.cluster.to_string()),
        node: owner.map(|owner| owner.node.to_string()),
        pod: owner.map(|owner| owner.pod.clone()),
        price: observed.size.as_ref().and_then(|size| prices.get(&size.to_string()).cloned()),
        size: observed.size,
        begin: observed.created.or(observed.started),
        end: observed.finished.filter(|_| has_ended),
        remark: Some(remarks.join("; ")).filter(|remark| !remark.is_empty()),
        ..Group::new(observed.group.id.to_string(), state)
    }
}

#[async_trait]
impl<B: GroupBackend> Inventory for GroupInventory<B> {
    async fn groups(&self, scope: &InventoryScope) -> Result<Vec<Group>> {
        let scope = self.scope(scope)?;
        let groups =
            self.observe(&scope).await.map_err(|error| error.for_operation("list the container groups"))?;
        let prices = self.prices(&groups).await;
        Ok(groups.into_iter().map(|one| shown(one, &prices)).collect())
    }

    async fn remove(&self, scope: &InventoryScope, id: &str) -> Result<()> {
        let operation = format!("remove container group {id}");
        let failed = |error: CallError| error.for_operation(&operation);
        let scope = self.scope(scope)?;
        let groups = self.observe(&scope).await.map_err(failed)?;
        let unknown = || {
            let node = scope.node.as_ref().map_or_else(String::new, |node| format!(" on node {node}"));
            Error::not_found(format!("{operation}: cluster {}{node} has no such group", scope.cluster))
        };
        let found = groups.into_iter().find(|one| *one.group.id == *id).ok_or_else(unknown)?;
        let call = self.backend.delete(&found.group, GRACE);
        match self.call(Action::Delete, call).await {
            Ok(_) | Err(CallError { class: Class::NotFound, .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}
