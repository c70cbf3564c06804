//! Trials of groups: the gates are removed when the backend has placed all pods, and if it does not take one of them, no trial goes on.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use vk_provider::placement::{trial_began, trial_node, trial_until};
use vk_supervisor::Now;

use super::{
    SchedulingGate, Stage,
    pod_group::GroupPlace,
    trial::{MARGIN, Next, NodeState, ends_within},
};
use crate::{
    context::PlacementContext,
    effect::TrialOutcome,
    pod_state::{self, LowerVerdict},
};

/// What is known about the trial of one pod of a group.
enum Progress {
    /// It goes on, and the backend has placed the pod or not.
    Live { is_scheduled: bool },
    /// The backend does not take the pod.
    Failed(TrialOutcome, String),
    /// It is over, and the node has not confirmed that.
    Over,
    /// A call is in flight, or the watch is behind.
    Unknown,
}

impl SchedulingGate {
    /// Decides for the groups that have pods on trial which of these may lose their gate, and which trials end.
    pub(super) fn check_group_trials(&mut self, now: Now, context: &PlacementContext) {
        let on_trial = self.stages.on_trial.iter().filter_map(|uid| self.pods.get(uid));
        let keys: BTreeSet<Arc<str>> = on_trial.filter_map(|tracked| tracked.group.clone()).collect();
        for key in keys {
            self.check_trials_of(now, &key, context);
        }
    }

    fn check_trials_of(&mut self, now: Now, key: &Arc<str>, context: &PlacementContext) {
        let stages = self.group_stages(key);
        let place = self.groups.get(key).map_or(GroupPlace::None, |group| group.place(&context.cluster));
        if place != GroupPlace::None {
            // It has been decided: each pod goes there by itself.
            for uid in &stages.on_trial {
                let Some(Stage::OnTrial(trial)) = self.pods.get_mut(uid).map(|it| &mut it.stage) else {
                    continue;
                };
                trial.is_held = false;
                trial.ended = None;
                if place != GroupPlace::On(Arc::clone(&trial.node)) {
                    let why = "the other pods of the group are on another node".to_owned();
                    trial.ended = Some((TrialOutcome::NotScheduled, why));
                }
            }
            return;
        }
        let mut live = 0;
        let (mut scheduled, mut is_unknown) = (0, false);
        let (mut failure, mut nodes) = (None, BTreeSet::new());
        for uid in &stages.on_trial {
            let progress = self.progress(now, uid, context);
            let Some(Stage::OnTrial(trial)) = self.pods.get_mut(uid).map(|it| &mut it.stage) else {
                continue;
            };
            trial.is_held = true;
            nodes.insert(Arc::clone(&trial.node));
            match progress {
                Progress::Live { is_scheduled } => {
                    live += 1;
                    scheduled += usize::from(is_scheduled);
                }
                Progress::Failed(outcome, why) => failure = Some((outcome, why)),
                Progress::Over => {
                    let why = "the trial of another pod of the group is over".to_owned();
                    failure = failure.or(Some((TrialOutcome::NotScheduled, why)));
                }
                Progress::Unknown => is_unknown = true,
            }
        }
        let size = self.group_size(key);
        let succeeded = self.succeeded(key);
        let present = stages.on_trial.len() + stages.placing.len() + stages.waiting.len() + succeeded;
        let obstacle = match &size {
            Err(why) => Some(why.clone()),
            Ok(size) if present < *size => Some("a pod of the group is gone".to_owned()),
            Ok(_) if nodes.len() > 1 => Some("pods of the group are on trial on several nodes".to_owned()),
            Ok(_) => None,
        };
        if let Some((outcome, why)) =
            failure.or_else(|| obstacle.map(|why| (TrialOutcome::NotScheduled, why)))
        {
            return self.end_group_trials(now.elapsed, key, outcome, &why);
        }
        let is_complete = size.is_ok_and(|size| live + succeeded >= size) && scheduled == live;
        if !is_complete || is_unknown || !stages.placing.is_empty() {
            return;
        }
        // What the first one decides has to hold until the others have followed.
        let mut are_extended = true;
        for uid in &stages.on_trial {
            let Some(tracked) = self.pods.get_mut(uid) else { continue };
            let ends_soon = ends_within(now.wall, MARGIN, &tracked.pod);
            if let Stage::OnTrial(trial) = &mut tracked.stage
                && ends_soon
            {
                trial.is_short = true;
                are_extended = false;
            }
        }
        let first = stages.on_trial.iter().min_by_key(|uid| self.position(uid)).filter(|_| are_extended);
        if let Some(Stage::OnTrial(trial)) =
            first.and_then(|uid| self.pods.get_mut(uid)).map(|it| &mut it.stage)
        {
            trial.is_held = false;
        }
    }

    /// Ends the trials of the group, none of whose pods has a node.
    pub(super) fn end_group_trials(
        &mut self,
        now: Duration,
        key: &Arc<str>,
        outcome: TrialOutcome,
        why: &str,
    ) {
        for uid in self.group_stages(key).on_trial {
            let Some(Stage::OnTrial(trial)) = self.pods.get_mut(&uid).map(|it| &mut it.stage) else {
                continue;
            };
            if trial.ended.is_none() {
                trial.ended = Some((outcome, why.to_owned()));
                self.pods_due = self.pods_due.min(now);
            }
        }
    }

    /// The node on which these pods are on trial; `None` if there are several, or if one of the trials is over.
    pub(super) fn trial_node_of(
        &self,
        now: Duration,
        uids: &[Arc<str>],
        context: &PlacementContext,
    ) -> Option<Arc<str>> {
        let now = Now { elapsed: now, wall: context.wall };
        let mut nodes = BTreeSet::new();
        for uid in uids {
            let tracked = self.pods.get(uid)?;
            let Stage::OnTrial(trial) = &tracked.stage else { return None };
            let is_live = trial_until(&tracked.pod).is_some_and(|until| until > now.wall);
            if trial.ended.is_some() || trial.call.is_some() || tracked.is_behind() || !is_live {
                return None;
            }
            nodes.insert(Arc::clone(&trial.node));
        }
        nodes.pop_first().filter(|_| nodes.is_empty())
    }

    fn progress(&mut self, now: Now, uid: &Arc<str>, context: &PlacementContext) -> Progress {
        let patience = self.settings.trial.unwrap_or_default();
        let Some(tracked) = self.pods.get_mut(uid) else { return Progress::Unknown };
        let is_behind = tracked.is_behind();
        let Stage::OnTrial(trial) = &mut tracked.stage else { return Progress::Unknown };
        if let Some((outcome, why)) = &trial.ended {
            return Progress::Failed(*outcome, why.clone());
        }
        if is_behind || trial.call.is_some() {
            return Progress::Unknown;
        }
        let is_over = trial_began(&tracked.pod).is_none()
            || trial_node(&tracked.pod).is_none()
            || trial_until(&tracked.pod).is_none_or(|until| until <= now.wall);
        if is_over {
            return Progress::Over;
        }
        let node = NodeState::of(context.cluster.node(&trial.node));
        match trial.next(now, &tracked.pod, patience, node) {
            Next::End(outcome, why) => Progress::Failed(outcome, why),
            _ => Progress::Live {
                is_scheduled: pod_state::lower_verdict(&tracked.pod) == LowerVerdict::Scheduled,
            },
        }
    }
}
