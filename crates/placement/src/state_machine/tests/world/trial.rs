//! Virtual nodes that take pods on trial.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use vk_provider::placement::{
    PLACEMENT_ANNOTATION, REFUSED_REASON, TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, declares_trial, trial_node,
    trial_until,
};

use super::{Scheduled, World};
use crate::{
    names, pod_state,
    state_machine::tests::lower_cluster::{Behaviour, cpus},
};

impl World {
    /// The nodes that a change of the pod concerns take notice of it some time later.
    pub(super) fn tell_nodes(&mut self, uid: &str) {
        let named = self.pods.get(uid).and_then(trial_node).map(str::to_owned);
        let running = self.lower.iter().filter(|(_, lower)| lower.runs(uid)).map(|(name, _)| name.clone());
        let nodes: Vec<String> = running.chain(named).collect();
        for node in nodes {
            let delay = self.delay();
            self.schedule(delay, Scheduled::SyncNode(node, uid.to_owned()));
        }
    }

    /// A node does what its part in trials is.
    pub(super) fn sync_node(&mut self, node: &str, uid: &str) {
        let Some(behaviour) = self.lower.get(node).map(|lower| lower.behaviour) else { return };
        if behaviour == Behaviour::Hangs {
            return self
                .schedule(Duration::from_secs(1), Scheduled::SyncNode(node.to_owned(), uid.to_owned()));
        }
        let Some(pod) = self.pods.get(uid).cloned() else { return self.remove_below(node, uid) };
        let takes_trials = self.nodes.get(node).is_some_and(declares_trial);
        match pod_state::node(&pod) {
            // The provider's other part adopts what is there.
            Some(bound_to) if bound_to == node => {
                if trial_node(&pod).is_some() {
                    self.end_of_trial(uid, pod, false);
                }
            }
            Some(_) => self.remove_below(node, uid),
            // A process that takes no trials is not shown the pod.
            None if trial_node(&pod) != Some(node) || !takes_trials => self.remove_below(node, uid),
            None => self.try_pod(node, uid, pod, behaviour),
        }
    }

    /// The process of a node is replaced by one that takes no pods on trial, or takes them again.
    pub(in super::super) fn set_takes_trials(&mut self, name: &str, takes_trials: bool) {
        let mut node = self.nodes[name].clone();
        let declared = if takes_trials { "fit,trial" } else { "fit" };
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(PLACEMENT_ANNOTATION.to_owned(), declared.to_owned());
        self.apply_node(node);
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.tell_nodes(&uid);
        }
    }

    fn try_pod(&mut self, node: &str, uid: &str, mut pod: Pod, behaviour: Behaviour) {
        let now = self.wall();
        let Some(until) = trial_until(&pod).filter(|until| *until > now) else {
            self.remove_below(node, uid);
            return self.end_of_trial(uid, pod, true);
        };
        let left = Duration::try_from(until.duration_since(now)).unwrap();
        self.schedule(left, Scheduled::SyncNode(node.to_owned(), uid.to_owned()));
        let elsewhere = self.lower.iter().any(|(name, lower)| name != node && lower.runs(uid));
        assert!(!elsewhere, "{uid} has two lower pods");
        let (status, reason) = if behaviour == Behaviour::Refuses {
            (false, REFUSED_REASON)
        } else {
            (self.lower.get_mut(node).unwrap().create(uid, cpus(&pod)), "Unschedulable")
        };
        let there = pod_state::condition(&pod, names::SCHEDULED);
        let expected = if status { "True" } else { "False" };
        if there.is_none_or(|there| there.status != expected || there.reason.as_deref() != Some(reason)) {
            self.set_condition(&mut pod, names::SCHEDULED, status, reason, "insufficient cpu");
            self.change_pod(uid, pod);
        }
    }

    fn end_of_trial(&mut self, uid: &str, mut pod: Pod, forget: bool) {
        pod.metadata.labels.get_or_insert_default().remove(TRIAL_LABEL);
        pod.metadata.annotations.get_or_insert_default().remove(TRIAL_UNTIL_ANNOTATION);
        if forget {
            let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
            conditions.retain(|condition| condition.type_ != names::SCHEDULED);
        }
        self.change_pod(uid, pod);
    }

    /// The lower pod goes, which makes room for others.
    pub(super) fn remove_below(&mut self, node: &str, uid: &str) {
        let Some(lower) = self.lower.get_mut(node).filter(|lower| lower.runs(uid)) else { return };
        for placed in lower.remove(uid) {
            self.report_scheduled(&placed, true);
        }
    }
}
