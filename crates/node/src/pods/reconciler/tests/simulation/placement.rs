//! A model of placement: it puts pods on trial on this node, ends trials, binds pods, and users interfere.

use std::time::Duration;

use k8s_openapi::{api::core::v1::PodCondition, apimachinery::pkg::apis::meta::v1::Time};
use rand::RngExt as _;
use vk_provider::placement::{
    ON_TRIAL_REASON, PLACED_CONDITION, SCHEDULED_CONDITION, TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, trial_node,
};

use super::{Scheduled, World, server};
use crate::pods::{reconciler::Input, watch::PodWatchEvent};

const NAMES: [&str; 2] = ["t", "u"];

impl World {
    /// Placement, or a user, does something with a pod that is not bound.
    pub(super) fn place(&mut self) {
        let name = NAMES[self.rng.random_range(0..NAMES.len())];
        let choice = self.rng.random_range(0..10);
        self.note(|| format!("placement {choice} with {name}"));
        let Some(pod) = self.server.tried_pod(name).cloned() else {
            if self.server.named(name).is_none() {
                self.server.create_tried(name);
                self.start_trial(name);
            }
            return;
        };
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        let is_scheduled = conditions.any(|one| one.type_ == SCHEDULED_CONDITION && one.status == "True");
        match (trial_node(&pod).is_some(), choice) {
            (true, 0..4) if is_scheduled => self.bind(name, "vk"),
            (true, 4..7) => self.server.edit_tried(name, |pod| {
                pod.metadata.annotations.get_or_insert_default().remove(TRIAL_UNTIL_ANNOTATION);
                true
            }),
            (true, 7) => self.server.edit_tried(name, |pod| {
                pod.metadata.labels.get_or_insert_default().remove(TRIAL_LABEL);
                true
            }),
            (_, 8) => self.server.edit_tried(name, |_| false),
            (_, 9) => self.server.edit_tried(name, |pod| {
                pod.metadata.labels.get_or_insert_default().insert("edit".to_owned(), "1".to_owned());
                true
            }),
            (false, 0..2) => self.bind(name, "vk"),
            (false, 2) => self.server.edit_tried(name, |pod| {
                pod.spec.get_or_insert_default().node_name = Some("other".to_owned());
                false
            }),
            (false, _) => self.start_trial(name),
            (true, _) => {}
        }
    }

    fn start_trial(&mut self, name: &str) {
        let seconds = self.rng.random_range(1..60);
        let until = server::wall(self.now + Duration::from_secs(seconds)).to_string();
        let began = Time(server::wall(self.now));
        self.server.edit_tried(name, |pod| {
            let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
            conditions.retain(|one| one.type_ != PLACED_CONDITION);
            conditions.push(PodCondition {
                type_: PLACED_CONDITION.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some(ON_TRIAL_REASON.to_owned()),
                last_transition_time: Some(began),
                ..PodCondition::default()
            });
            pod.metadata.labels.get_or_insert_default().insert(TRIAL_LABEL.to_owned(), "vk".to_owned());
            pod.metadata.annotations.get_or_insert_default().insert(TRIAL_UNTIL_ANNOTATION.to_owned(), until);
            true
        });
    }

    fn bind(&mut self, name: &str, node: &str) {
        self.server.edit_tried(name, |pod| {
            pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
            true
        });
    }

    /// The watch of pods on trial shows what happened, some time later.
    pub(super) fn follow_trial_watch(&mut self) {
        if !self.server.trial_log.is_empty() && !self.trial_watch_broken && !self.trial_watch_due {
            self.trial_watch_due = true;
            let delay = self.delay();
            self.later(delay, Scheduled::TrialWatch);
        }
    }

    /// It shows what happened, or breaks and is begun again with a list.
    pub(super) fn watch_trials(&mut self) {
        self.trial_watch_due = false;
        if self.trial_watch_broken {
            return;
        }
        if self.in_storm() && self.rng.random_bool(0.15) {
            self.trial_watch_broken = true;
            let wait = Duration::from_millis(self.rng.random_range(0..20_000));
            let process = self.process;
            return self.later(wait, Scheduled::TrialRelist(process));
        }
        for event in std::mem::take(&mut self.server.trial_log) {
            self.feed(Input::TrialWatch(event));
        }
    }

    pub(super) fn relist_trials(&mut self) {
        self.trial_watch_broken = false;
        self.server.trial_log.clear();
        self.feed(Input::TrialWatch(PodWatchEvent::Restarted));
        let all = self.server.tried().chain(self.server.pods());
        let pods: Vec<_> = all.filter(|pod| trial_node(pod).is_some()).cloned().collect();
        for pod in pods {
            self.feed(Input::TrialWatch(PodWatchEvent::Applied(pod)));
        }
        self.feed(Input::TrialWatch(PodWatchEvent::Listed));
    }
}
