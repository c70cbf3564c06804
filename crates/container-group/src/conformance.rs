//! The conformance suite of the engine with a backend: each case is named after what it prevents.
//!
//! ```
//! vk_container_group::conformance!(|clock| vk_container_group::fake::FakeCloud::new(clock));
//! ```
//!
//! The macro generates one test per case. The cases play the core: they create and delete pods, read the changes, kill and restart the engine;
//! and they play the cloud's bad side through [`TestCloud`]. They run on tokio's paused clock.

mod case;
mod node;
mod pod;
mod resolver;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::LocalBoxFuture;
use jiff::{SignedDuration, Timestamp};
use vk_supervisor::Clock;

use crate::{
    GroupBackend,
    backend::{Action, GroupRef, Owner},
    fake::{CallFaults, Fault},
};

pub use self::{
    node::{Journal, Node},
    pod::{pod, pod_with_secret, reference},
    resolver::FixedResolver,
};

/// A cloud that does to groups and calls what tests want.
#[async_trait]
pub trait TestCloud: Clone + Send + Sync + 'static {
    /// The backend under test.
    type Backend: GroupBackend;

    /// A backend for this cloud.
    fn backend(&self) -> Arc<Self::Backend>;
    /// What happens to calls, and how many there were.
    fn faults(&self) -> &CallFaults;
    /// Whether we may see our groups.
    fn set_visible(&self, visible: bool);
    /// How old lists are.
    fn set_lag(&self, lag: Duration);
    /// How many groups are on a page.
    fn set_page(&self, groups: usize);
    /// By how much the cloud's clock is ahead.
    fn set_clock_error(&self, error: SignedDuration);
    /// How long groups take to start.
    fn set_start(&self, start: Duration);
    /// The groups that cost money, those of others included.
    fn seen_groups(&self) -> Vec<SeenGroup>;
    /// The groups of a pod are suddenly not there any more.
    fn vanish(&self, uid: &str);
    /// The cloud takes the groups of a pod back.
    fn preempt(&self, uid: &str);
    /// The cloud has a warning about a pod.
    fn warn(&self, uid: &str, reason: &str);
    /// Someone else makes a group.
    fn add_group(&self, owner: &Owner) -> GroupRef;

    /// The next call of this kind has this fault; those that follow, the faults that were set after it.
    fn fail(&self, action: Action, fault: Fault) {
        self.faults().fail(action, fault);
    }

    /// Every so many calls is throttled.
    fn throttle(&self, every: Option<u64>) {
        self.faults().throttle(every);
    }

    /// The calls that were made.
    fn calls(&self, action: Action) -> u64 {
        self.faults().calls(action)
    }

    /// All calls that were made.
    fn total_calls(&self) -> u64 {
        self.faults().total_calls()
    }

    /// The calls that failed.
    fn failed_calls(&self) -> u64 {
        self.faults().failed_calls()
    }
}

/// A group that costs money.
#[derive(Clone, Debug)]
pub struct SeenGroup {
    /// Its id and name.
    pub group: GroupRef,
    /// Whose it is.
    pub owner: Owner,
    /// Whether its delete was accepted.
    pub deleting: bool,
}

/// What a case gets.
#[derive(Debug)]
pub struct CaseContext<C> {
    /// The cloud.
    pub cloud: C,
    /// The clock of engine and cloud.
    pub clock: Clock,
}

/// Runs a case on a paused clock.
///
/// # Panics
///
/// When the case fails.
pub fn check<C: TestCloud>(
    open: impl FnOnce(Clock) -> C,
    case: impl FnOnce(Arc<CaseContext<C>>) -> LocalBoxFuture<'static, ()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.unwrap_or_else(|error| panic!("start a tokio runtime: {error}"));
    runtime.block_on(async {
        let clock = Clock::following_tokio(Timestamp::from_second(1_800_000_000).unwrap_or_default());
        let context = Arc::new(CaseContext { cloud: open(clock.clone()), clock });
        case(context).await;
    });
}

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            pub fn $name<C: TestCloud>(context: Arc<CaseContext<C>>) -> LocalBoxFuture<'static, ()> {
                Box::pin(async move { case::$name(&context).await })
            }
        )*

        /// Generates one test per case. The expression makes a [`TestCloud`](crate::conformance::TestCloud) from a clock.
        #[macro_export]
        macro_rules! conformance {
            ($open:expr) => {
                $(
                    #[test]
                    fn $name() {
                        $crate::conformance::check($open, $crate::conformance::$name);
                    }
                )*
            };
        }
    };
}

cases! {
    /// A create whose answer was lost makes one group.
    create_then_503
    /// A create that was carried out after it was given up makes one group.
    create_carried_out_late
    /// A call that never ends, or panics, does not block the pod.
    call_that_hangs_or_panics
    /// A process that is killed while it creates leaves one group.
    duplicate_create_with_same_token
    /// A list whose middle is missing proves nothing.
    list_page_lost_in_the_middle
    /// Neither does a list that goes in circles, or cannot be continued.
    pages_that_repeat_or_are_refused
    /// A long list is read to its end although half of all calls are throttled.
    many_pages_while_calls_are_throttled
    /// A group that is deleted does not come back from an old list.
    delete_then_ghost_in_list
    /// A group that vanishes is gone only when it was missed twice and asked for.
    group_vanishes_while_running
    /// Groups that vanish all at once are not believed to be gone.
    mass_disappearance
    /// Most groups that vanish are believed to be gone when calls that ask for them do not find them, either.
    mass_disappearance_of_most_groups
    /// Groups that nobody lets us see are not created again.
    mass_disappearance_of_groups_that_start
    /// Neither is one group, for some time, if the cloud has never shown it.
    group_that_was_never_seen
    /// Two pods of one name are two groups.
    same_name_pod_recreated
    /// A restart at any time leaves one group, and none after the delete.
    controller_restart_at_each_step
    /// The younger of two groups of one pod is deleted, and reported.
    duplicate_of_an_earlier_process
    /// 1,000 pods are started as fast as the budget allows, without a throttled call.
    thousand_pods_under_a_10_rps_budget
    /// A start of the process with 1,000 groups adopts them with few calls.
    restart_with_thousand_groups
    /// 1,000 idle groups cost less than a call in two seconds.
    thousand_idle_groups
    /// A change is seen within three seconds while something else is in progress.
    change_among_thousand_groups
    /// Clocks that differ by an hour change nothing.
    clock_skew
    /// A cloud that throttles half of all calls for five minutes slows us down, and no more.
    throttle_storm
    /// Pods whose calls failed in an outage do not retry all at once.
    outage_with_thousand_pods
    /// A standby that becomes the leader knows what the leader before it has created.
    handover_to_a_standby
    /// A Secret that changes is one event for each volume.
    secret_rotation
    /// The same for a pod that an earlier process created.
    secret_rotation_after_a_restart
    /// A token that will expire is a warning.
    token_expiry
    /// The same for a pod that an earlier process created.
    token_expiry_after_a_restart
    /// A change in place is not made again by later processes.
    update_made_once_across_restarts
    /// A spot group that is taken back is a failed pod that was disrupted.
    spot_interruption
    /// The engine never deletes a group because nobody has asked for it.
    orphan_younger_than_grace
    /// Nodes of one account do not touch each other's groups.
    two_nodes_sharing_an_account
    /// A pod that cannot run is refused with all reasons, without a call.
    rejected_pod_makes_no_call
    /// Refused credentials make the node not ready, and the first answer makes it ready.
    refused_credentials
    /// A process that does not own the node writes nothing.
    writes_end_with_the_session
    /// The cloud's events come once, also after a restart.
    events_once_across_restarts
}
