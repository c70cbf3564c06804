//! A running pod whose resources change: what the provider has, what is wanted, and why it is not done yet.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, PodCondition, ResourceRequirements};
use vk_provider::error::Kind;

use super::{admission::was_admitted, event::ProviderFailure};
use crate::pods::{
    admission::ResizeDelay,
    digest::ValueDigest,
    fingerprint::{containers, size},
    status::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
};

/// The resources of a pod and of its containers.
#[derive(Clone, Debug, Default, PartialEq)]
struct PodResources {
    pod: Option<ResourceRequirements>,
    containers: BTreeMap<String, Option<ResourceRequirements>>,
}

/// A change of a pod's resources that the provider has not accepted yet.
#[derive(Debug)]
struct Resize {
    /// What the provider has.
    from: PodResources,
    from_size: ValueDigest,
    to: ValueDigest,
    state: State,
    /// Why it was not done when it was last asked for.
    delay: Option<ResizeDelay>,
    /// The pod that was sent with the call in flight.
    sent: Option<Arc<Pod>>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// The node has not decided yet.
    Undecided,
    /// The provider is to do it. It may have failed before.
    InProgress { failure: Option<ProviderFailure> },
    /// The node has no room, now or ever.
    Deferred,
    /// The provider refuses it.
    Refused,
}

/// An event about a resize: its reason and message.
pub(super) type ResizeEvent = (&'static str, String);

/// What was known of a pod before a new version of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'a> {
    /// The version before.
    pub(super) pod: Option<&'a Pod>,
    /// The resources of that version, if they are known.
    pub(super) size: Option<ValueDigest>,
    /// The provider has the pod, or may have it soon.
    pub(super) may_exist: bool,
    /// An update call is in flight.
    pub(super) updating: bool,
}

/// The resize of a pod, if there is one.
#[derive(Debug, Default)]
pub(super) struct ResizeTracker(Option<Box<Resize>>);

// === impl PodResources ===

impl PodResources {
    fn of(pod: &Pod) -> Self {
        Self {
            pod: pod.spec.as_ref().and_then(|spec| spec.resources.clone()),
            containers: containers(pod).map(|(_, one)| (one.name.clone(), one.resources.clone())).collect(),
        }
    }

    /// What the provider has by the status that an earlier process wrote.
    fn allocated(pod: &Pod) -> Self {
        let mut resources = Self::of(pod);
        let Some(status) = &pod.status else { return resources };
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for one in lists.into_iter().flatten().flatten() {
            let Some(Some(known)) = resources.containers.get_mut(&one.name) else { continue };
            if one.allocated_resources.is_some() && one.allocated_resources != known.requests {
                known.requests.clone_from(&one.allocated_resources);
                let limits = one.resources.as_ref().and_then(|resources| resources.limits.clone());
                known.limits = limits.or_else(|| known.limits.take());
            }
        }
        resources
    }

    /// The pod with these resources.
    fn apply_to(&self, pod: &Pod) -> Arc<Pod> {
        let mut pod = pod.clone();
        if let Some(spec) = &mut pod.spec {
            spec.resources.clone_from(&self.pod);
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

// === impl ResizeTracker ===

impl ResizeTracker {
    pub(super) fn is_active(&self) -> bool {
        self.0.is_some()
    }

    /// A new version of the pod: notices that its resources differ from what the provider has.
    pub(super) fn observe(&mut self, pod: &Pod, wanted: ValueDigest, before: Before<'_>) {
        if let Some(resize) = &mut self.0 {
            if resize.to != wanted {
                resize.to = wanted;
                resize.state = State::Undecided;
                resize.delay = None;
            }
            if !before.updating && resize.to == resize.from_size {
                self.0 = None;
            }
            return;
        }
        let from = match before.pod {
            Some(known) if before.size.is_some_and(|size| size != wanted) => PodResources::of(known),
            None => PodResources::allocated(pod),
            Some(_) => return,
        };
        let from_size = size(&from.apply_to(pod));
        // A pod that was admitted was admitted with its resources, and is not asked again.
        if from_size != wanted && (before.may_exist || before.pod.is_none() || was_admitted(pod)) {
            let (state, delay, sent) = (State::Undecided, None, None);
            self.0 = Some(Box::new(Resize { from, from_size, to: wanted, state, delay, sent }));
        }
    }

    /// Whether the node must decide before the provider is called.
    pub(super) fn is_undecided(&self) -> bool {
        self.0.as_ref().is_some_and(|resize| resize.state == State::Undecided)
    }

    /// The node has decided. Returns an event about it.
    pub(super) fn decided(&mut self, answer: Result<(), ResizeDelay>) -> Option<ResizeEvent> {
        let resize = self.0.as_mut()?;
        match answer {
            Ok(()) => {
                resize.state = State::InProgress { failure: None };
                resize.delay = None;
                None
            }
            Err(delay) => resize.put_off(delay, State::Deferred),
        }
    }

    /// The node has more room: a resize that it deferred is decided anew.
    pub(super) fn room_freed(&mut self) {
        if let Some(resize) = self.0.as_mut().filter(|resize| resize.state == State::Deferred) {
            resize.state = State::Undecided;
        }
    }

    /// Whether the provider is to do it.
    pub(super) fn is_in_progress(&self) -> bool {
        self.0.as_ref().is_some_and(|resize| resize.is_in_progress())
    }

    /// The resources to send to the provider, where they differ from those that are wanted.
    pub(super) fn size_to_send(&self) -> Option<ValueDigest> {
        self.0.as_ref().filter(|resize| !resize.is_in_progress()).map(|resize| resize.from_size)
    }

    /// The pod to send to the provider.
    pub(super) fn send(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        let Some(resize) = &mut self.0 else { return Arc::clone(pod) };
        let sent = if resize.is_in_progress() { Arc::clone(pod) } else { resize.from.apply_to(pod) };
        resize.sent = Some(Arc::clone(&sent));
        sent
    }

    /// The pod with the resources that the provider has.
    pub(super) fn actual(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        self.0.as_ref().map_or_else(|| Arc::clone(pod), |resize| resize.from.apply_to(pod))
    }

    /// The provider refuses it. Returns an event about it.
    pub(super) fn refused(&mut self, message: String) -> Option<ResizeEvent> {
        let resize = self.0.as_mut()?;
        resize.sent = None;
        resize.put_off(ResizeDelay { infeasible: true, message }, State::Refused)
    }

    /// The provider could not do it now.
    pub(super) fn failed(&mut self, failed: &ProviderFailure) {
        if let Some(resize) = &mut self.0 {
            resize.sent = None;
            if let State::InProgress { failure } = &mut resize.state {
                *failure = Some(failed.clone());
            }
        }
    }

    /// The provider has accepted a pod with these resources. Returns whether the resize is complete.
    pub(super) fn accepted(&mut self, size: Option<ValueDigest>) -> bool {
        let Some(mut resize) = self.0.take() else { return false };
        if size == Some(resize.to) {
            return true;
        }
        if let (Some(sent), Some(size)) = (resize.sent.take(), size) {
            resize.from = PodResources::of(&sent);
            resize.from_size = size;
        }
        self.0 = Some(resize);
        false
    }

    /// The condition that reports it.
    pub(super) fn condition(&self) -> Option<PodCondition> {
        let resize = self.0.as_ref()?;
        let (kind, reason, message) = match &resize.state {
            State::InProgress { failure: None } => (RESIZE_IN_PROGRESS, None, None),
            State::InProgress { failure: Some(failure) } if failure.kind == Kind::Exhausted => {
                (RESIZE_PENDING, Some("Deferred"), Some(&failure.message))
            }
            State::InProgress { failure: Some(failure) } => {
                (RESIZE_IN_PROGRESS, Some("Error"), Some(&failure.message))
            }
            State::Undecided | State::Deferred | State::Refused => {
                let delay = resize.delay.as_ref()?;
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

// === impl Resize ===

impl Resize {
    fn is_in_progress(&self) -> bool {
        matches!(self.state, State::InProgress { .. })
    }

    fn put_off(&mut self, delay: ResizeDelay, state: State) -> Option<ResizeEvent> {
        self.state = state;
        if self.delay.as_ref() == Some(&delay) {
            return None;
        }
        let reason = if delay.infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
        let message = delay.message.clone();
        self.delay = Some(delay);
        Some((reason, message))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str) -> Arc<Pod> {
        let container = json!({"name": "a", "resources": {"requests": {"cpu": cpu}}});
        Arc::new(serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap())
    }

    fn resized(from: &str, to: &str) -> ResizeTracker {
        let mut tracker = ResizeTracker::default();
        let from = pod(from);
        let before = Before { pod: Some(&from), size: Some(size(&from)), may_exist: true, updating: false };
        tracker.observe(&pod(to), size(&pod(to)), before);
        tracker
    }

    fn reason(tracker: &ResizeTracker) -> Option<String> {
        tracker.condition().and_then(|one| one.reason)
    }

    #[test]
    fn the_provider_gets_the_old_resources_until_the_node_has_room() {
        let mut tracker = resized("1", "5");
        assert!(tracker.is_undecided());
        let delay = ResizeDelay { infeasible: false, message: "full".to_owned() };
        assert_eq!(tracker.decided(Err(delay.clone())).map(|(reason, _)| reason), Some("ResizeDeferred"));
        assert_eq!(tracker.send(&pod("5")), pod("1"));
        assert_eq!(reason(&tracker).as_deref(), Some("Deferred"));
        tracker.room_freed();
        assert!(tracker.is_undecided());
        assert_eq!(tracker.decided(Err(delay)), None, "the same event once");
        tracker.room_freed();
        tracker.decided(Ok(()));
        assert_eq!(tracker.send(&pod("5")), pod("5"));
        assert!(tracker.accepted(Some(size(&pod("5")))) && !tracker.is_active());
    }

    #[test]
    fn a_change_back_to_what_the_provider_has_ends_the_resize() {
        let mut tracker = resized("1", "5");
        let (known, back) = (pod("5"), pod("1"));
        let before = Before { pod: Some(&known), size: Some(size(&known)), may_exist: true, updating: false };
        tracker.observe(&back, size(&back), Before { updating: true, ..before });
        assert!(tracker.is_active(), "the call in flight may take effect");
        tracker.observe(&back, size(&back), before);
        assert!(!tracker.is_active());
    }

    #[test]
    fn a_refused_resize_is_infeasible_until_it_is_changed() {
        let mut tracker = resized("1", "5");
        tracker.decided(Ok(()));
        tracker.send(&pod("5"));
        assert_eq!(tracker.refused("no".to_owned()).map(|(reason, _)| reason), Some("ResizeInfeasible"));
        assert_eq!(reason(&tracker).as_deref(), Some("Infeasible"));
        assert_eq!(tracker.actual(&pod("5")), pod("1"));
        tracker.room_freed();
        assert!(!tracker.is_undecided());
        let known = pod("5");
        let before = Before { pod: Some(&known), size: Some(size(&known)), may_exist: true, updating: false };
        tracker.observe(&pod("3"), size(&pod("3")), before);
        assert!(tracker.is_undecided());
    }
}
