//! The interface between the engine and a cloud.
//!
//! A backend knows one cloud and nothing else: it turns a pod into the cloud's request, makes calls, and says what it saw. It keeps no
//! state about groups, starts no tasks, does not retry, and does not decide: identity, retries, rates, polling, doubt about lost answers and
//! orphans are the engine's.

mod call_error;
mod caps;
mod group;
mod observed;
mod plan;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use vk_provider::ability::{ExecOptions, Started};

pub use self::{
    call_error::{CallError, CallResult, Class},
    caps::{Action, Caps, ExecLimits, Idempotency, LogLimits, Naming, Rate, TagLimits, Updates},
    group::{Deletion, GroupRef, Health, Owner, Scope, Usage},
    observed::{
        ContainerState, ContainerUsage, GroupEvent, GroupState, GroupStats, Observed, ObservedContainer,
        Page, Termination,
    },
    plan::{Creation, FieldError, Placement, Plan, Price, Rejection, ResolvedPod, Size, Update, Warning},
};

/// One cloud, for one account and region.
///
/// **One call, one request.** Each method other than [`caps`](Self::caps) and [`translate`](Self::translate) makes one call of the cloud's
/// API: the engine waits for the budget before it, counts it, and drops it at [`Caps::deadline`]. Dropping a call must be safe.
///
/// **Errors.** [`Class`] decides what the engine does. The most important question is whether a write that failed may have been carried out:
/// if so it is [`Class::Ambiguous`], and the engine looks for the group before anything else is done for that pod.
///
/// **Honesty.** What is not known is left out, never guessed: every field of [`Observed`] except the group is optional. A
/// list that may lack groups is marked as incomplete.
#[async_trait]
pub trait GroupBackend: Send + Sync + 'static {
    /// The cloud's request for a group, without what the engine adds: name, tags, token, placement.
    type Request: Send + Sync + 'static;

    /// What this cloud can do, and its limits. Never changes.
    fn caps(&self) -> &Caps;

    /// Turns a pod into a request, without any I/O. A pod that cannot run is rejected with all reasons, not only the first.
    fn translate(&self, pod: &ResolvedPod) -> Result<Plan<Self::Request>, Rejection>;

    /// Creates a group. Returns it as soon as the cloud has accepted it; `None` if the cloud has not said its id yet.
    async fn create(&self, creation: &Creation<'_, Self::Request>) -> CallResult<Option<GroupRef>>;

    /// One page of the groups in a scope: `page` is the [`Page::next`] of the page before. Groups of others are left out, by their tags or
    /// names; so are groups whose owner cannot be told.
    async fn observe(&self, scope: &Scope, page: Option<&str>) -> CallResult<Page>;

    /// Everything about these groups, at most [`Caps::detail_batch`]. A group that does not exist is left out.
    async fn detail(&self, groups: &[GroupRef]) -> CallResult<Vec<Observed>>;

    /// Deletes a group. Returns as soon as the cloud has accepted it.
    async fn delete(&self, group: &GroupRef, grace: Duration) -> CallResult<Deletion>;

    /// Whether the cloud answers and lets us work, and how much of the quota is used.
    async fn probe(&self) -> CallResult<Health>;

    /// One page of the groups that changed in the time before now, with [`Caps::feed`]. Repeated changes do no harm; a group that is not in it
    /// is unchanged, or unknown.
    async fn changes(&self, scope: &Scope, before: Duration, page: Option<&str>) -> CallResult<Page> {
        let _ = (scope, before, page);
        Err(CallError::unsupported("changes of container groups"))
    }

    /// A part of a container's log, with [`Caps::logs`].
    async fn logs(&self, group: &GroupRef, container: &str, range: &LogRange) -> CallResult<Bytes> {
        let _ = (group, container, range);
        Err(CallError::unsupported("container logs"))
    }

    /// Starts a command in a container, with [`Caps::exec`].
    async fn exec(
        &self,
        group: &GroupRef,
        container: &str,
        command: &[String],
        options: &ExecOptions,
    ) -> CallResult<Started> {
        let _ = (group, container, command, options);
        Err(CallError::unsupported("commands in containers"))
    }

    /// Resource usage of these groups, at most [`Caps::stats_batch`]. A group without figures is left out.
    async fn stats(&self, groups: &[GroupRef]) -> CallResult<Vec<GroupStats>> {
        let _ = groups;
        Err(CallError::unsupported("resource usage"))
    }

    /// Changes a running group in place, for the changes in [`Caps::updates`], and writes its tags with the same call.
    async fn update(&self, group: &GroupRef, update: &Update<'_, Self::Request>) -> CallResult<()> {
        let _ = (group, update);
        Err(CallError::unsupported("changes of a running container group"))
    }

    /// The list price of this size; `None` if it is unknown.
    async fn price(&self, size: &Size) -> CallResult<Option<Price>> {
        let _ = size;
        Ok(None)
    }
}

/// The part of a log that [`GroupBackend::logs`] reads.
///
/// The result is text whose lines each begin with an RFC 3339 time and a space if [`LogLimits::stamped`] says so. It contains the newest
/// lines of the range: if the cloud limits lines or bytes, the oldest are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRange {
    /// The number of lines from the end; `None` for as many as the cloud gives.
    pub tail: Option<u64>,
    /// Only lines from this time on. The cloud may return earlier lines.
    pub since: Option<jiff::Timestamp>,
    /// The log of the previous instance of the container.
    pub previous: bool,
}
