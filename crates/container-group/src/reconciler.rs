//! All groups of one node: inputs in, effects out.
//!
//! It owns the [`PodGroups`] of each UID and the poll. It does no I/O and reads no clock: the engine carries out the effects and
//! hands in the answers; simulations do the same against a model of a cloud.

mod polls;
mod view;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use rand::rngs::StdRng;
use vk_provider::PodRef;

pub use self::view::PodView;
use crate::{
    backend::{
        CallError, CallResult, Caps, Deletion, GroupEvent, GroupRef, Health, Idempotency, Observed, Page,
        Scope,
    },
    identity,
    lifecycle::{Action, CallId, CallIds, PodGroups, Request, Surroundings},
    poll::{Pages, PollCall, Run, Schedule},
};

/// How long groups that are gone are remembered beyond the time for which lists may still show them.
const TOMBSTONE: Duration = Duration::from_mins(1);

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// The core wants a pod.
    Create {
        /// The pod.
        pod: PodRef,
        /// Whether an earlier process may have created it.
        inherited: bool,
        /// Whether it has init containers.
        init: bool,
    },
    /// The core does not want a pod any more.
    Delete {
        /// The pod.
        pod: PodRef,
        /// Its grace period.
        grace: Duration,
    },
    /// Whether this process owns the node.
    Leading(bool),
    /// Somebody needs a fresh look at the cloud.
    Refresh,
    /// A call was answered.
    Answered(CallId, Answer),
    /// A call will not be made, because [`Reconciler::start`] forbade it.
    Abandoned(CallId),
    /// Time passed.
    Tick,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a create. The flag: another placement can be tried.
    Created(CallResult<Option<GroupRef>>, bool),
    /// To a delete.
    Deleted(CallResult<Deletion>),
    /// To a list, a lookup or the feed.
    Page(CallResult<Page>),
    /// To a question for details.
    Details(CallResult<Vec<Observed>>),
    /// To a probe.
    Health(CallResult<Health>),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Create a group, when the budget allows it and [`Reconciler::start`] agrees.
    Create {
        /// Answer with this id.
        id: CallId,
        /// The pod.
        pod: PodRef,
        /// The attempt.
        attempt: u32,
    },
    /// Delete a group, in the same way.
    Delete {
        /// Answer with this id.
        id: CallId,
        /// The pod.
        pod: PodRef,
        /// The group.
        group: GroupRef,
        /// Its grace period.
        grace: Duration,
    },
    /// Ask the cloud.
    Poll {
        /// Answer with this id.
        id: CallId,
        /// The question.
        call: PollCall,
    },
    /// Answer the core's call for a pod.
    Settled(PodRef, Request, CallResult<()>),
    /// What is known of a pod has changed.
    Changed(PodRef),
    /// The cloud has events of a pod. They may repeat earlier ones.
    Events(PodRef, Vec<GroupEvent>),
    /// The cloud has said something about a pod that could not be understood.
    Malformed(PodRef, Vec<String>),
    /// A pod had two groups.
    Duplicate {
        /// The pod.
        pod: PodRef,
        /// The group that stays.
        kept: GroupRef,
        /// The group that is deleted.
        removed: GroupRef,
    },
    /// Nothing of a pod is left, and nothing is asked for.
    Forgotten(PodRef),
    /// A poll has ended, well or not.
    Polled(CallResult<()>),
    /// Whether we can see our groups: `Some` says why not.
    Sight(Option<String>),
    /// All groups of the node are known now.
    Synced,
}

/// What the reconciler needs to know about the cloud.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The groups of this node.
    pub scope: Scope,
    /// [`Caps::consistency`].
    pub consistency: Duration,
    /// [`Caps::idempotency`].
    pub idempotency: Idempotency,
    /// [`Caps::feed`].
    pub feed: bool,
    /// [`Caps::detail_batch`].
    pub detail_batch: usize,
}

/// All groups of one node.
#[derive(Debug)]
pub struct Reconciler {
    policy: Policy,
    rng: StdRng,
    ids: CallIds,
    pods: BTreeMap<Arc<str>, PodGroups>,
    /// The pod of each group.
    owners: HashMap<Arc<str>, Arc<str>>,
    /// Groups that are certainly gone, and until when lists may show them.
    tombstones: HashMap<Arc<str>, Duration>,
    /// Groups with names like ours, whose tags must be read to know whose they are.
    unidentified: BTreeMap<Arc<str>, Unidentified>,
    calls: HashMap<CallId, Call>,
    schedule: Schedule,
    run: Option<Run>,
    leading: bool,
    /// When this process began to own the node: what others did before is not known until a list that was begun later.
    session: Duration,
    synced: bool,
    certain: bool,
    /// When the last complete list began, and how many pages it had.
    listed: Option<Duration>,
    list_calls: u32,
    /// When the last run began whose feed or list was read to its end.
    followed: Option<Duration>,
    /// Why we may not see our groups.
    blind: Option<String>,
}

#[derive(Debug)]
struct Unidentified {
    group: GroupRef,
    ask_at: Duration,
}

/// A call in progress that is not part of a poll.
#[derive(Debug)]
enum Call {
    Pod(Arc<str>),
    LookUp { uid: Arc<str>, attempt: u32, pages: Pages },
}

// === impl Policy ===

impl Policy {
    /// The policy for a cloud.
    pub fn new(scope: Scope, caps: &Caps) -> Self {
        Self {
            scope,
            consistency: caps.consistency,
            idempotency: caps.idempotency,
            feed: caps.feed,
            detail_batch: caps.detail_batch.max(1),
        }
    }
}

// === impl Reconciler ===

impl Reconciler {
    /// A reconciler that knows nothing yet.
    pub fn new(policy: Policy, rng: StdRng) -> Self {
        Self {
            policy,
            rng,
            ids: CallIds::default(),
            pods: BTreeMap::new(),
            owners: HashMap::new(),
            tombstones: HashMap::new(),
            unidentified: BTreeMap::new(),
            calls: HashMap::new(),
            schedule: Schedule::default(),
            run: None,
            leading: false,
            session: Duration::ZERO,
            synced: false,
            certain: false,
            listed: None,
            list_calls: 1,
            followed: None,
            blind: None,
        }
    }

    /// When to send [`Input::Tick`], if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Duration> {
        let poll = self.run.is_none().then(|| self.schedule.next_at());
        self.pods.values().filter_map(|groups| groups.deadline(self.leading)).chain(poll).min()
    }

    /// Handles an input, and adds what is to be done to the effects.
    pub fn handle(&mut self, now: Duration, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Create { pod, inherited, init } => {
                let groups = || PodGroups::new(pod.clone(), inherited);
                self.pods.entry(Arc::clone(&pod.uid)).or_insert_with(groups).set_init_containers(init);
                self.schedule.changed(now);
                self.with(now, &pod.uid, effects, PodGroups::create);
            }
            Input::Delete { pod, grace } => {
                self.pods.entry(Arc::clone(&pod.uid)).or_insert_with(|| PodGroups::new(pod.clone(), true));
                self.schedule.changed(now);
                self.with(now, &pod.uid, effects, |groups, around| groups.delete(around, grace));
            }
            Input::Leading(leading) => {
                if leading && !self.leading {
                    self.begin_session(now);
                }
                self.leading = leading;
                self.tick_all(now, effects);
            }
            Input::Refresh => self.schedule.changed(now),
            Input::Answered(id, answer) => self.answered(now, id, answer, effects),
            Input::Abandoned(id) => {
                if let Some(Call::Pod(uid)) = self.calls.remove(&id) {
                    self.with(now, &uid, effects, |groups, around| groups.abandoned(around, id));
                }
            }
            Input::Tick => self.tick_due(now, effects),
        }
        self.tombstones.retain(|_, until| *until > now);
        if self.run.is_none() && self.schedule.can_hurry(now) && self.is_busy() {
            self.schedule.hurry(now);
        }
        if self.run.is_none() && self.schedule.next_at() <= now {
            self.begin_run(now, effects);
        }
    }

    /// Whether a call that was asked for is still wanted, now that the budget has a place for it. Must be asked directly before the call;
    /// if the answer is no, [`Input::Abandoned`] follows.
    pub fn start(&mut self, id: CallId) -> bool {
        let Some(Call::Pod(uid)) = self.calls.get(&id) else { return false };
        let leading = self.leading;
        self.pods.get_mut(uid).is_some_and(|groups| groups.start(id, leading))
    }

    /// Another process may have owned the node until now: nothing is certain until the groups were listed again.
    fn begin_session(&mut self, now: Duration) {
        self.session = now;
        self.synced = false;
        self.certain = false;
        self.pods.values_mut().for_each(PodGroups::set_inherited);
        self.run = None;
        self.schedule.begin(now);
    }

    /// Whether something is on its way to another state.
    fn is_busy(&self) -> bool {
        self.blind.is_some() || self.pods.values().any(PodGroups::is_changing)
    }

    fn answered(&mut self, now: Duration, id: CallId, answer: Answer, effects: &mut Vec<Effect>) {
        if self.run.as_ref().is_some_and(|run| run.id == id) {
            return self.poll_answered(now, answer, effects);
        }
        match (self.calls.remove(&id), answer) {
            (Some(Call::Pod(uid)), Answer::Created(result, alternatives)) => {
                self.schedule.changed(now);
                if let Ok(Some(group)) = &result {
                    // The id may be that of an earlier group that is gone.
                    self.tombstones.remove(&group.id);
                    self.owners.insert(Arc::clone(&group.id), Arc::clone(&uid));
                }
                self.with(now, &uid, effects, |groups, around| {
                    groups.created(around, id, result, alternatives);
                });
                self.report_change(&uid, effects);
            }
            (Some(Call::Pod(uid)), Answer::Deleted(result)) => {
                self.schedule.changed(now);
                self.with(now, &uid, effects, |groups, around| groups.deleted(around, id, result));
            }
            (Some(Call::LookUp { uid, attempt, pages }), Answer::Page(result)) => {
                self.looked_up(now, id, (uid, attempt, pages), result, effects);
            }
            _ => {}
        }
    }

    fn report_change(&self, uid: &str, effects: &mut Vec<Effect>) {
        if let Some(groups) = self.pods.get(uid) {
            effects.push(Effect::Changed(groups.pod().clone()));
        }
    }

    fn tick_due(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let leading = self.leading;
        let due = self.pods.values().filter(|groups| groups.deadline(leading).is_some_and(|due| due <= now));
        let due: Vec<Arc<str>> = due.map(|groups| Arc::clone(&groups.pod().uid)).collect();
        for uid in due {
            self.with(now, &uid, effects, PodGroups::tick);
        }
    }

    fn tick_all(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.with(now, &uid, effects, PodGroups::tick);
        }
    }

    /// Lets the machine of a pod handle something, and carries out what it wants.
    fn with<T>(
        &mut self,
        now: Duration,
        uid: &str,
        effects: &mut Vec<Effect>,
        handle: impl FnOnce(&mut PodGroups, &mut Surroundings<'_>) -> T,
    ) -> Option<T> {
        let mut actions = Vec::new();
        let groups = self.pods.get_mut(uid)?;
        let mut around = Surroundings {
            now,
            consistency: self.policy.consistency,
            idempotency: self.policy.idempotency,
            synced: self.synced,
            certain: self.certain,
            leading: self.leading,
            ids: &mut self.ids,
            actions: &mut actions,
        };
        let result = handle(groups, &mut around);
        let (pod, done) = (groups.pod().clone(), groups.is_done());
        for action in actions {
            self.act(now, &pod, action, effects);
        }
        if done {
            self.pods.remove(uid);
            effects.push(Effect::Forgotten(pod));
        }
        Some(result)
    }

    fn act(&mut self, now: Duration, pod: &PodRef, action: Action, effects: &mut Vec<Effect>) {
        let uid = &pod.uid;
        match action {
            Action::Create { id, attempt } => {
                self.calls.insert(id, Call::Pod(Arc::clone(uid)));
                effects.push(Effect::Create { id, pod: pod.clone(), attempt });
            }
            Action::Delete { id, group, grace } => {
                self.calls.insert(id, Call::Pod(Arc::clone(uid)));
                effects.push(Effect::Delete { id, pod: pod.clone(), group, grace });
            }
            Action::LookUp { id, attempt } => {
                let name = identity::name(uid, attempt).into();
                let pages = Pages::default();
                self.calls.insert(id, Call::LookUp { uid: Arc::clone(uid), attempt, pages });
                let call = PollCall::Observe { name: Some(name), page: None };
                effects.push(Effect::Poll { id, call });
            }
            Action::Settle(request, result) => effects.push(Effect::Settled(pod.clone(), request, result)),
            Action::Duplicate { kept, removed } => {
                effects.push(Effect::Duplicate { pod: pod.clone(), kept, removed });
            }
            Action::Gone(group) => {
                self.owners.remove(&group.id);
                self.tombstones.insert(group.id, now + self.policy.consistency * 2 + TOMBSTONE);
                effects.push(Effect::Changed(pod.clone()));
            }
        }
    }
}

/// The error for a call without a usable answer.
fn unusable() -> CallError {
    CallError::ambiguous("the call was answered with something else")
}

#[cfg(test)]
mod tests;
