//! Calls: each waits for the budget, has a deadline, and is always answered.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use tokio::time::Instant;
use tracing::{debug, warn};
use vk_provider::PodRef;
use vk_supervisor::task::Kind;

use super::context::EngineContext;
use crate::{
    GroupBackend,
    backend::{Action, CallError, CallResult, Class, Creation, GroupRef, Owner},
    identity,
    lifecycle::CallId,
    poll::PollCall,
    reconciler::{Answer, Input},
};

impl<B: GroupBackend> EngineContext<B> {
    /// Waits for the budget and makes a call.
    pub(super) async fn call<T>(
        &self,
        action: Action,
        call: impl Future<Output = CallResult<T>> + Send,
    ) -> CallResult<T> {
        self.turn(action).await;
        self.call_now(action, call).await
    }

    /// Waits for the budget.
    async fn turn(&self, action: Action) {
        let begun = Instant::now();
        self.budget.acquire(action).await;
        self.call_metrics.waited(action, begun.elapsed());
    }

    /// The same for the lookup of a single group.
    async fn turn_of_lookup(&self) {
        let begun = Instant::now();
        self.budget.acquire_lookup().await;
        self.call_metrics.waited(Action::Observe, begun.elapsed());
    }

    /// Makes a call for which the budget has a place. A call that panics or does not end has failed, and may have been carried out.
    async fn call_now<T>(
        &self,
        action: Action,
        call: impl Future<Output = CallResult<T>> + Send,
    ) -> CallResult<T> {
        let begun = Instant::now();
        let deadline = self.backend.caps().deadline;
        let caught = AssertUnwindSafe(Box::pin(call)).catch_unwind();
        let result = match tokio::time::timeout(deadline, caught).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(CallError::ambiguous(format!("the call {} panicked", action.name()))),
            Err(_) => Err(CallError::ambiguous(format!(
                "the cloud has not answered the call {} within {} s",
                action.name(),
                deadline.as_secs()
            ))),
        };
        if let Err(error) = &result {
            debug!(action = action.name(), class = error.class.name(), %error, "a call failed");
        }
        self.call_metrics.called(action, begun.elapsed(), &result);
        self.budget.record(action, &result);
        result
    }

    /// Runs a call in a task of its own, and hands in its answer.
    fn spawn_call(
        self: &Arc<Self>,
        id: CallId,
        name: &'static str,
        call: impl Future<Output = Answer> + Send + 'static,
    ) {
        let this = Arc::clone(self);
        self.supervisor.spawn(name, Kind::Work, async move {
            tokio::select! {
                answer = call => this.handle(Input::Answered(id, answer)),
                () = this.supervisor.stopping() => {}
            }
        });
    }

    pub(super) fn spawn_create(self: &Arc<Self>, id: CallId, pod: PodRef, attempt: u32) {
        let this = Arc::clone(self);
        self.supervisor.spawn("create group", Kind::Work, async move {
            tokio::select! {
                () = this.turn(Action::Create) => {}
                () = this.supervisor.stopping() => return,
            }
            if !this.state.lock().reconciler.start(id) {
                return this.handle(Input::Abandoned(id));
            }
            // Not given up when the process stops: the cloud answers soon, or the next process looks it up.
            let (result, alternatives) = this.create(&pod, attempt).await;
            this.handle(Input::Answered(id, Answer::Created(result, alternatives)));
        });
    }

    async fn create(&self, pod: &PodRef, attempt: u32) -> (CallResult<Option<GroupRef>>, bool) {
        if let Some(refusal) = self.quota_refusal().await {
            return (Err(refusal), false);
        }
        let now = self.now();
        let prepared = {
            let mut state = self.state.lock();
            let record = state.record(pod);
            let (plan, hash) = (record.plan.clone(), record.spec_hash.clone());
            match plan {
                None => Err(CallError::unavailable("the pod has to be translated again")),
                Some(plan) => {
                    let placement = state.stock.choose(now, &plan.placements, plan.size.as_ref());
                    placement.map(|placement| (plan, placement, hash))
                }
            }
        };
        let (plan, placement, hash) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return (Err(error), false),
        };
        let owner = Owner {
            cluster: Arc::clone(&self.scope.cluster),
            node: self.settings.node.as_str().into(),
            pod: pod.clone(),
            attempt,
            spec_hash: hash.map(|hash| hash.to_string()),
        };
        let (name, token) = (identity::name(&pod.uid, attempt), identity::token(&pod.uid, attempt));
        let tags = self.identity.tags(&owner);
        let creation = Creation {
            plan: &plan,
            owner: &owner,
            name: &name,
            tags: &tags,
            token: &token,
            placement: placement.as_ref(),
        };
        {
            // Also if the answer is lost, the group has these files.
            let mut state = self.state.lock();
            let record = state.record(pod);
            record.created_with = Some(Arc::clone(&record.planned_files));
        }
        let result = self.call_now(Action::Create, self.backend.create(&creation)).await;
        let mut alternatives = false;
        match &result {
            Err(CallError { class: class @ (Class::OutOfStock | Class::ZoneOutOfStock), .. }) => {
                if let Some(place) = &placement {
                    let (now, size) = (self.now(), plan.size.as_ref());
                    let mut state = self.state.lock();
                    let stock = &mut state.stock;
                    match class {
                        Class::ZoneOutOfStock => stock.zone_exhausted(now, place),
                        _ => stock.exhausted(now, place, size),
                    }
                    alternatives = stock.choose(now, &plan.placements, size).is_ok();
                }
            }
            Err(error @ CallError { class: Class::QuotaExceeded, .. }) => {
                warn!(%pod, %error, "the quota is used up");
                return (Err(self.quota_refused(error).await), false);
            }
            _ => {}
        }
        (result, alternatives)
    }

    pub(super) fn spawn_delete(self: &Arc<Self>, id: CallId, pod: &PodRef, group: GroupRef, grace: Duration) {
        debug!(%pod, %group, ?grace, "delete the group");
        let this = Arc::clone(self);
        self.supervisor.spawn("delete group", Kind::Work, async move {
            tokio::select! {
                () = this.turn(Action::Delete) => {}
                () = this.supervisor.stopping() => return,
            }
            if !this.state.lock().reconciler.start(id) {
                return this.handle(Input::Abandoned(id));
            }
            let result = this.call_now(Action::Delete, this.backend.delete(&group, grace)).await;
            this.handle(Input::Answered(id, Answer::Deleted(result)));
        });
    }

    pub(super) fn spawn_poll(self: &Arc<Self>, id: CallId, call: PollCall) {
        let this = Arc::clone(self);
        self.spawn_call(id, "poll groups", async move {
            let backend = &this.backend;
            match call {
                PollCall::Observe { name, page } => {
                    match &name {
                        Some(_) => this.turn_of_lookup().await,
                        None => this.turn(Action::Observe).await,
                    }
                    let scope = name.map_or_else(|| this.scope.clone(), |name| this.scope.named(name));
                    let call = backend.observe(&scope, page.as_deref());
                    Answer::Page(this.call_now(Action::Observe, call).await)
                }
                PollCall::Changes { since, page } => {
                    this.turn(Action::Changes).await;
                    // It covers the time before it is sent, which may be long after it was asked for.
                    let before = this.now().saturating_sub(since);
                    let call = backend.changes(&this.scope, before, page.as_deref());
                    Answer::Page(this.call_now(Action::Changes, call).await)
                }
                PollCall::Detail(groups) => {
                    Answer::Details(this.call(Action::Detail, backend.detail(&groups)).await)
                }
                PollCall::Probe => Answer::Health(this.call(Action::Probe, backend.probe()).await),
            }
        });
    }
}
