//! The core and its users: which pods are wanted, what the core asks for, and what must hold.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rand::RngExt as _;
use vk_provider::PodRef;

use super::{CONSISTENCY, Input, PodView, Scheduled, World, owner};
use crate::{
    backend::{CallResult, Class, GroupRef, GroupState, Idempotency},
    lifecycle::Request,
};

/// How often the core looks.
const ROUND: Duration = Duration::from_secs(2);
const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) pods: BTreeMap<Arc<str>, CorePod>,
    uids: u32,
    /// Pods of the provider that the core does not know, and when it saw them first.
    orphans: BTreeMap<Arc<str>, Duration>,
}

#[derive(Debug)]
pub(super) struct CorePod {
    pub(super) pod: PodRef,
    pub(super) deleting: bool,
    /// The call that is awaited.
    calling: Option<Request>,
    retry_at: Duration,
    accepted: bool,
    /// The process that called create first.
    process: u32,
}

impl Core {
    pub(super) fn restarted(&mut self) {
        self.orphans.clear();
        for pod in self.pods.values_mut() {
            pod.calling = None;
            pod.accepted = false;
            pod.retry_at = Duration::ZERO;
        }
    }

    pub(super) fn settled(&mut self, now: Duration, pod: &PodRef, request: Request, result: CallResult<()>) {
        let Some(one) = self.pods.get_mut(&pod.uid) else { return };
        if one.calling != Some(request) {
            return;
        }
        one.calling = None;
        match (request, result) {
            (Request::Create, Ok(())) => one.accepted = true,
            (Request::Delete, Ok(())) => one.retry_at = now + Duration::from_secs(20),
            (Request::Delete, Err(error)) if error.class == Class::NotFound => {
                self.pods.remove(&pod.uid);
            }
            (_, Err(_)) => one.retry_at = now + Duration::from_secs(3),
        }
    }
}

impl World {
    /// A user creates, deletes, or replaces a pod by one of the same name.
    pub(super) fn user(&mut self) {
        let name = NAMES[self.rng.random_range(0..NAMES.len())];
        let existing = self.core.pods.values_mut().find(|one| &*one.pod.name == name && !one.deleting);
        let replace = match existing {
            Some(pod) => {
                pod.deleting = true;
                pod.retry_at = Duration::ZERO;
                self.rng.random_bool(0.5)
            }
            None => true,
        };
        if replace {
            self.core.uids += 1;
            let uid = format!("00000000-0000-0000-0000-{:012x}", self.core.uids);
            let pod = PodRef::new("shop", name, uid);
            let one = CorePod {
                pod: pod.clone(),
                deleting: false,
                calling: None,
                retry_at: Duration::ZERO,
                accepted: false,
                process: self.process,
            };
            self.core.pods.insert(Arc::clone(&pod.uid), one);
        }
    }

    /// Something goes wrong in the cloud.
    pub(super) fn mishap(&mut self) {
        let uids: Vec<PodRef> = self.core.pods.values().map(|one| one.pod.clone()).collect();
        let count = self.cloud.groups.len();
        match self.rng.random_range(0..5) {
            0 if count > 0 => {
                let at = self.rng.random_range(0..count);
                self.cloud.groups[at].ended.get_or_insert(self.now);
            }
            1 if count > 0 => {
                let at = self.rng.random_range(0..count);
                let one = &mut self.cloud.groups[at];
                if !one.foreign {
                    one.gone.get_or_insert(self.now);
                }
            }
            // A duplicate, as of a process that was killed at the wrong time.
            2 if !uids.is_empty() && self.cloud.idempotency != Idempotency::Name => {
                let pod = uids[self.rng.random_range(0..uids.len())].clone();
                if !self.core.pods[&pod.uid].deleting {
                    self.cloud.create(self.now, &owner(pod, 7), &mut self.rng);
                }
            }
            3 => {
                let mut owner = owner(PodRef::new("other", "x", format!("foreign-{count}")), 1);
                owner.node = "other".into();
                let group = self.cloud.create(self.now, &owner, &mut self.rng);
                let last = self.cloud.groups.iter_mut().find(|one| one.reference == group);
                last.expect("it was just created").foreign = true;
            }
            _ => {
                self.cloud.visible = false;
                self.later(Duration::from_secs(40), Scheduled::Visible);
            }
        }
    }

    /// The core calls for pods that are not as they should be.
    pub(super) fn core_round(&mut self) {
        self.schedule(self.now + ROUND, Scheduled::Core);
        let mut inputs = Vec::new();
        let mut removed = Vec::new();
        for (uid, one) in &mut self.core.pods {
            let view = self.reconciler.view(uid);
            let absent = matches!(view, PodView::Absent);
            let ended = matches!(view, PodView::Present(group) if group.has_ended());
            if one.deleting && (absent || ended) && one.calling.is_none() {
                removed.push((one.pod.clone(), absent));
            }
            if absent && one.calling.is_none() {
                one.accepted = false;
            }
            if one.retry_at > self.now {
                continue;
            }
            // A delete takes the place of a create.
            if one.deleting && one.calling != Some(Request::Delete) {
                one.calling = Some(Request::Delete);
                inputs.push(Input::Delete { pod: one.pod.clone(), grace: Duration::from_secs(5) });
            } else if !one.deleting && one.calling.is_none() && !one.accepted {
                one.calling = Some(Request::Create);
                let inherited = one.process != self.process;
                inputs.push(Input::Create {
                    pod: one.pod.clone(),
                    inherited,
                    init: uid.ends_with(char::is_numeric),
                });
            }
        }
        for (pod, absent) in removed {
            if absent {
                self.assert_absent(&pod);
            }
            self.core.pods.remove(&pod.uid);
        }
        let strange: Vec<PodRef> = self
            .reconciler
            .present()
            .map(|(pod, _)| pod.clone())
            .filter(|pod| !self.core.pods.contains_key(&pod.uid))
            .collect();
        for pod in strange {
            let first = *self.core.orphans.entry(Arc::clone(&pod.uid)).or_insert(self.now);
            if self.now > first + Duration::from_mins(1) {
                self.core.orphans.insert(Arc::clone(&pod.uid), self.now);
                inputs.push(Input::Delete { pod, grace: Duration::ZERO });
            }
        }
        for input in inputs {
            self.input(input);
        }
    }

    /// Whether the cloud hid our groups since the last full list may have been read: one that was alone may count as gone.
    fn was_hidden(&self) -> bool {
        self.hidden.is_some_and(|hidden| self.now < hidden + Duration::from_mins(6))
    }

    pub(super) fn check(&mut self) {
        if !self.cloud.visible {
            self.hidden = Some(self.now);
        }
    }

    /// The core was told that nothing of the pod runs.
    pub(super) fn assert_absent(&self, pod: &PodRef) {
        let live = self.cloud.groups.iter().find(|one| one.owner.pod == *pod && one.is_live(self.now));
        let made_by_others = |attempt| attempt == 7;
        if let Some(group) = live.filter(|one| !self.was_hidden() && !made_by_others(one.owner.attempt)) {
            panic!("{pod} is said to be absent, but {group:?} runs");
        }
    }

    pub(super) fn assert_may_delete(&self, pod: &PodRef, group: &GroupRef) {
        let target = self.cloud.groups.iter().rev().find(|one| one.reference.id == group.id);
        let Some(target) = target else { panic!("{group} never existed") };
        assert!(!target.foreign, "a foreign group is deleted: {target:?}");
        assert_eq!(target.owner.pod, *pod);
        let wanted = self.core.pods.get(&pod.uid).is_some_and(|one| !one.deleting);
        let gone_already = target.gone.is_some_and(|gone| gone <= self.now);
        if !wanted || gone_already || target.deleting.is_some() {
            return;
        }
        let kept = self.cloud.groups.iter().any(|one| {
            one.owner.pod == *pod
                && one.reference.id != group.id
                && one.created <= target.created
                && one.gone.is_none_or(|gone| self.now < gone + CONSISTENCY)
        });
        assert!(kept, "a wanted pod loses its only group: {target:?}");
    }

    pub(super) fn assert_settled(&self) {
        let exists = |gone: Option<Duration>| gone.is_none_or(|gone| gone > self.now);
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for one in self.cloud.groups.iter().filter(|one| exists(one.gone) && !one.foreign) {
            *counts.entry(Arc::clone(&one.owner.pod.uid)).or_default() += 1;
        }
        for (uid, one) in &self.core.pods {
            assert!(!one.deleting, "{} was never deleted", one.pod);
            let count = counts.remove(uid).unwrap_or_default();
            assert_eq!(count, 1, "{} has {count} groups: {:?}", one.pod, self.cloud.groups);
            let PodView::Present(group) = self.reconciler.view(uid) else {
                panic!("{} is not seen", one.pod)
            };
            assert_ne!(group.observed().state, Some(GroupState::Deleting));
        }
        assert!(counts.is_empty(), "groups without a pod: {counts:?}");
        let foreign = self.cloud.groups.iter().filter(|one| one.foreign);
        assert!(foreign.clone().all(|one| one.deleting.is_none()), "a foreign group was deleted");
    }
}
