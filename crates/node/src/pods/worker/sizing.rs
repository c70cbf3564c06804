//! A running pod that shall have another size: what the backend has, what is wanted, and why it has it not yet.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, PodCondition, ResourceRequirements};
use vk_provider::{EventKind, error::Kind};

use super::{Action, Call, Presence, Refusal, Worker, admitting::has_place};
use crate::pods::{
    admission::{Checks, Delay},
    digest::Digest,
    fingerprint::{Fingerprint, containers, size},
    status::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
};

/// The resources of a pod and of its containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sizes {
    whole: Option<ResourceRequirements>,
    containers: BTreeMap<String, Option<ResourceRequirements>>,
}

/// A change of a pod's size that the provider has not taken yet.
#[derive(Debug)]
pub(super) struct Resizing {
    /// What the backend has.
    from: Sizes,
    from_size: Digest,
    to: Digest,
    state: State,
    /// Why it was not done when it was last asked for.
    delay: Option<Delay>,
    /// What was handed to the provider in the call under way.
    sent: Option<Arc<Pod>>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Nobody asked yet.
    New,
    /// The node is asked.
    Asked,
    /// The provider is told; it may have failed before.
    Going { trouble: Option<Refusal> },
    /// The node has no room, now or ever.
    PutOff,
    /// The provider refuses it.
    Refused,
}

// === impl Sizes ===

impl Sizes {
    fn of(pod: &Pod) -> Self {
        Self {
            whole: pod.spec.as_ref().and_then(|spec| spec.resources.clone()),
            containers: containers(pod).map(|(_, one)| (one.name.clone(), one.resources.clone())).collect(),
        }
    }

    /// What an earlier process wrote down that the backend has.
    fn written(pod: &Pod) -> Self {
        let mut sizes = Self::of(pod);
        let Some(status) = &pod.status else { return sizes };
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for one in lists.into_iter().flatten().flatten() {
            let Some(Some(known)) = sizes.containers.get_mut(&one.name) else { continue };
            if one.allocated_resources.is_some() && one.allocated_resources != known.requests {
                known.requests.clone_from(&one.allocated_resources);
                let limits = one.resources.as_ref().and_then(|resources| resources.limits.clone());
                known.limits = limits.or_else(|| known.limits.take());
            }
        }
        sizes
    }

    /// The pod with these sizes.
    fn on(&self, pod: &Pod) -> Arc<Pod> {
        let mut pod = pod.clone();
        if let Some(spec) = &mut pod.spec {
            spec.resources.clone_from(&self.whole);
            let init = spec.init_containers.iter_mut().flatten();
            for container in init.chain(&mut spec.containers) {
                if let Some(resources) = self.containers.get(&container.name) {
                    container.resources.clone_from(resources);
                }
            }
        }
        Arc::new(pod)
    }
}

// === impl Worker ===

impl Worker {
    /// The pod is wanted like this: notices that its size is another than the backend's.
    pub(super) fn size(&mut self, pod: &Arc<Pod>, print: Fingerprint) {
        if let Some(resizing) = &mut self.resizing {
            if resizing.to != print.size {
                resizing.to = print.size;
                resizing.state = State::New;
                resizing.delay = None;
            }
            if self.call != Some(Call::Update) && resizing.to == resizing.from_size {
                self.resizing = None;
            }
            return;
        }
        let from = match &self.desired {
            Some(known) if self.print.is_some_and(|known| known.size != print.size) => Sizes::of(known),
            None => Sizes::written(pod),
            _ => return,
        };
        let from_size = size(&from.on(pod));
        let may_have = self.presence != Presence::Absent || self.call.is_some() || self.desired.is_none();
        // A place on the node is of a size, too, and is not asked for again.
        if from_size != print.size && (may_have || has_place(pod)) {
            let resizing =
                Resizing { from, from_size, to: print.size, state: State::New, delay: None, sent: None };
            self.resizing = Some(Box::new(resizing));
        }
    }

    /// Sees to it that the node has decided about another size. Tells whether the provider may be called.
    pub(super) fn may_resize(&mut self, pod: &Arc<Pod>, actions: &mut Vec<Action>) -> bool {
        let (accepted, checked) = (self.accepted, self.policy.checks == Checks::Full);
        let Some(resizing) = self.resizing.as_mut().filter(|_| accepted) else { return true };
        match resizing.state {
            State::New if checked => {
                resizing.state = State::Asked;
                actions.push(Action::Resize(Arc::clone(pod)));
                false
            }
            State::New => {
                resizing.state = State::Going { trouble: None };
                true
            }
            State::Asked => false,
            State::Going { .. } | State::PutOff | State::Refused => true,
        }
    }

    /// Of the pod as the provider gets it now.
    pub(super) fn print_to_send(&self, pod: &Pod) -> Fingerprint {
        let mut print = self.print.unwrap_or_else(|| Fingerprint::of(pod, &self.published));
        if let Some(resizing) = self.resizing.as_ref().filter(|resizing| !resizing.goes()) {
            print.size = resizing.from_size;
        }
        print
    }

    /// The pod as the provider gets it now.
    pub(super) fn bundle(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        let Some(resizing) = &mut self.resizing else { return Arc::clone(pod) };
        let bundle = if resizing.goes() { Arc::clone(pod) } else { resizing.from.on(pod) };
        resizing.sent = Some(Arc::clone(&bundle));
        bundle
    }

    /// The node has decided.
    pub(super) fn sized(&mut self, answer: Result<(), Delay>, actions: &mut Vec<Action>) {
        let Some(resizing) = self.resizing.as_mut().filter(|resizing| resizing.state == State::Asked) else {
            return;
        };
        match answer {
            Ok(()) => {
                resizing.state = State::Going { trouble: None };
                resizing.delay = None;
            }
            Err(delay) => {
                self.generation = self.desired.as_ref().and_then(|pod| pod.metadata.generation);
                self.delay(delay, State::PutOff, actions);
            }
        }
    }

    fn delay(&mut self, delay: Delay, state: State, actions: &mut Vec<Action>) {
        let Some(resizing) = &mut self.resizing else { return };
        resizing.state = state;
        if resizing.delay.as_ref() != Some(&delay) {
            let reason = if delay.infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
            actions.push(Action::Announce(EventKind::Warning, reason.into(), delay.message.clone()));
            resizing.delay = Some(delay);
        }
    }

    /// The node has more room: what it put off may now be.
    pub(super) fn room(&mut self) {
        if let Some(resizing) = &mut self.resizing
            && resizing.state == State::PutOff
        {
            resizing.state = State::New;
        }
    }

    /// The provider refuses a change. Tells whether that was the size.
    pub(super) fn resize_refused(&mut self, refusal: &Refusal, actions: &mut Vec<Action>) -> bool {
        let Some(resizing) = self.resizing.as_mut().filter(|resizing| resizing.goes()) else { return false };
        resizing.sent = None;
        if let Some(pod) = &self.desired {
            actions.push(Action::Claim(resizing.from.on(pod)));
        }
        // Whatever else was changed is tried without it.
        let same = |known: &Fingerprint| self.acted_on.is_some_and(|acted| acted.rest == known.rest);
        self.acted_on = self.settled.filter(same);
        let delay = Delay { infeasible: true, message: refusal.message.clone() };
        self.delay(delay, State::Refused, actions);
        true
    }

    /// The provider could not do it now.
    pub(super) fn resize_failed(&mut self, refusal: &Refusal) {
        if let Some(resizing) = &mut self.resizing {
            resizing.sent = None;
            if let State::Going { trouble } = &mut resizing.state {
                *trouble = Some(refusal.clone());
            }
        }
    }

    /// The provider has taken a change.
    pub(super) fn resize_taken(&mut self, actions: &mut Vec<Action>) {
        let Some(mut resizing) = self.resizing.take() else { return };
        let taken = self.acted_on.map(|acted| acted.size);
        if taken == Some(resizing.to) {
            let message = "the provider has taken the new size".to_owned();
            return actions.push(Action::Announce(EventKind::Normal, "ResizeCompleted".into(), message));
        }
        if let (Some(sent), Some(taken)) = (resizing.sent.take(), taken) {
            resizing.from = Sizes::of(&sent);
            resizing.from_size = taken;
        }
        self.resizing = Some(resizing);
    }

    /// The pod with the size that the backend has, where that is another.
    pub(super) fn actual(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        self.resizing.as_ref().map_or_else(|| Arc::clone(pod), |resizing| resizing.from.on(pod))
    }

    /// What to say about the size.
    pub(super) fn size_condition(&self) -> Option<PodCondition> {
        let resizing = self.resizing.as_ref()?;
        let (kind, reason, message) = match &resizing.state {
            State::Going { trouble: None } => (RESIZE_IN_PROGRESS, None, None),
            State::Going { trouble: Some(trouble) } if trouble.kind == Kind::Exhausted => {
                (RESIZE_PENDING, Some("Deferred"), Some(&trouble.message))
            }
            State::Going { trouble: Some(trouble) } => {
                (RESIZE_IN_PROGRESS, Some("Error"), Some(&trouble.message))
            }
            State::New | State::Asked | State::PutOff | State::Refused => {
                let delay = resizing.delay.as_ref()?;
                let reason = if delay.infeasible { "Infeasible" } else { "Deferred" };
                (RESIZE_PENDING, Some(reason), Some(&delay.message))
            }
        };
        Some(PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: reason.map(str::to_owned),
            message: message.cloned(),
            ..PodCondition::default()
        })
    }
}

// === impl Resizing ===

impl Resizing {
    /// Whether the provider is to have the new size.
    fn goes(&self) -> bool {
        matches!(self.state, State::Going { .. })
    }
}
