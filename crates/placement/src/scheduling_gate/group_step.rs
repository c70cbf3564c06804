//! The steps of a group on its way to a node: all of its pods do the same before one of them does the next.
//!
//! What decides for the group is a single write: it removes the gate of the oldest of its pods, and only if that pod is still as this process
//! has left it. If another process has chosen another node meanwhile, the write fails.

use std::{sync::Arc, time::Duration};

use super::{
    SchedulingGate, Stage,
    placement_step::{Placing, Step, nominated_node_that_takes},
    pod_group::{self, GroupPlace},
    wait_queue::Position,
};
use crate::{choose::LOCAL, cluster_state::ClusterState, context::PlacementContext, pod_state};

/// A group that could not be placed waits this long at least.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// How soon a queue is evaluated after something has changed in its group.
const SOON: Duration = Duration::from_millis(1);

/// The pods of a group that have no node yet, by what happens with them.
#[derive(Debug, Default)]
pub(super) struct GroupStages {
    pub(super) waiting: Vec<Position>,
    pub(super) placing: Vec<Arc<str>>,
    pub(super) on_trial: Vec<Arc<str>>,
}

impl SchedulingGate {
    pub(super) fn group_stages(&self, key: &str) -> GroupStages {
        let mut stages = GroupStages::default();
        let Some(group) = self.groups.get(key) else { return stages };
        for uid in &group.tracked {
            match self.pods.get(uid).map(|tracked| &tracked.stage) {
                Some(Stage::Waiting { position, .. }) => stages.waiting.push(position.clone()),
                Some(Stage::Placing(_)) => stages.placing.push(Arc::clone(uid)),
                Some(Stage::OnTrial(_)) => stages.on_trial.push(Arc::clone(uid)),
                Some(Stage::Ungated(_)) | None => {}
            }
        }
        stages
    }

    /// How many pods the group has, as those say that have their gate.
    pub(super) fn group_size(&self, key: &str) -> Result<usize, String> {
        let uids = self.groups.get(key).into_iter().flat_map(|group| &group.tracked);
        let tracked = uids.filter_map(|uid| self.pods.get(uid));
        let gated = tracked.filter(|tracked| !matches!(tracked.stage, Stage::Ungated(_)));
        pod_group::size(key, gated.map(|tracked| &*tracked.pod))
    }

    /// How many pods of the group have succeeded, with the controllers of those that have not.
    pub(super) fn succeeded(&self, key: &str) -> usize {
        let uids = self.groups.get(key).into_iter().flat_map(|group| &group.tracked);
        let pods = uids.filter_map(|uid| self.pods.get(uid)).map(|tracked| &*tracked.pod);
        let controllers =
            pods.map(|pod| pod_state::controller(pod).map(|owner| owner.uid.as_str())).collect();
        self.groups.succeeded(key, &controllers)
    }

    /// Lets the groups go on of which something has changed.
    pub(super) fn advance_groups(&mut self, now: Duration, context: &mut PlacementContext) {
        for key in self.groups.take_changed() {
            if let Some(queue) = self.queues.get_mut(&key) {
                queue.touch();
                self.wake = self.wake.min(now + SOON);
            }
            // Those on trial are looked at there.
            self.pods_due_at(now);
            self.advance_group(now, &key, context);
        }
    }

    fn advance_group(&mut self, now: Duration, key: &Arc<str>, context: &mut PlacementContext) {
        let stages = self.group_stages(key);
        if stages.placing.is_empty() {
            return;
        }
        match self.groups.get(key).map_or(GroupPlace::None, |group| group.place(&context.cluster)) {
            GroupPlace::None => {}
            GroupPlace::On(place) => {
                for uid in &stages.placing {
                    let node = self.placing(uid).map(|placing| place_of(&placing.node, &context.cluster));
                    if node.is_some_and(|node| *node == *place) {
                        self.release(now, uid, None, context);
                    } else {
                        self.abandon(uid, now, context);
                    }
                }
                return;
            }
            GroupPlace::Split(_) => {
                return stages.placing.iter().for_each(|uid| self.abandon(uid, now, context));
            }
        }
        let placing = || stages.placing.iter().filter_map(|uid| self.placing(uid));
        let is_deciding = |one: &Placing| one.step == Step::Ungate && !one.is_held() && one.call.is_some();
        if placing().any(|one| one.is_abandoned() || is_deciding(one)) {
            // The answer to the call continues here.
            return;
        }
        let present = stages.placing.len() + stages.on_trial.len() + self.succeeded(key);
        let is_complete = self.group_size(key).is_ok_and(|size| present >= size);
        let is_nominated = stages.placing.iter().all(|uid| self.is_as_left(uid));
        if !is_complete || !is_nominated {
            return self.give_up_group(key, now + AFTER_FAILURE, context);
        }
        if placing().any(|one| !one.is_held()) {
            return;
        }
        if placing().all(|one| one.step == Step::Ungate) && stages.on_trial.is_empty() {
            let first = stages.placing.iter().min_by_key(|uid| self.position(uid));
            return first.iter().for_each(|uid| self.release(now, uid, None, context));
        }
        // A trial of some pods only says nothing about the group.
        let by_trial = placing().all(|one| one.step == Step::StartTrial);
        if !by_trial && !stages.on_trial.is_empty() {
            let why = "not all pods of the group can be tried";
            self.end_group_trials(now, key, crate::effect::TrialOutcome::NotScheduled, why);
            return self.give_up_group(key, now + AFTER_FAILURE, context);
        }
        let step = if by_trial { Step::StartTrial } else { Step::Nominate };
        for uid in &stages.placing {
            self.release(now, uid, Some(step), context);
        }
    }

    /// Goes on with a group of which an earlier process has nominated pods for a node that still takes them.
    pub(super) fn resume_group(&mut self, now: Duration, key: &Arc<str>, context: &mut PlacementContext) {
        let waiting = self.group_stages(key).waiting;
        let pods = waiting.iter().filter_map(|position| Some((position, &self.pods.get(&position.uid)?.pod)));
        let nominated: Vec<_> = pods
            .filter_map(|(position, pod)| {
                Some((Arc::clone(&position.uid), nominated_node_that_takes(pod, context)?))
            })
            .collect();
        let mut places = nominated.iter().map(|(_, node)| place_of(node, &context.cluster));
        let place = places.next();
        if places.any(|other| Some(other) != place) {
            return;
        }
        for (uid, node) in nominated {
            self.resume(now, &uid, node, context);
        }
        self.groups.touch(key);
    }

    /// The pods of the group for which a node is being told wait again, unless pods of the group have a node already.
    pub(super) fn give_up_group(
        &mut self,
        key: &Arc<str>,
        not_before: Duration,
        context: &mut PlacementContext,
    ) {
        let place = self.groups.get(key).map(|group| group.place(&context.cluster));
        if place.is_some_and(|place| place != GroupPlace::None) {
            return;
        }
        for uid in self.group_stages(key).placing {
            self.abandon(&uid, not_before, context);
        }
    }

    /// The pod does not go to its node with the others. What a call in flight does is awaited.
    fn abandon(&mut self, uid: &Arc<str>, not_before: Duration, context: &mut PlacementContext) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let Stage::Placing(placing) = &mut tracked.stage else { return };
        if placing.call.is_some() {
            placing.abandon();
        } else {
            self.wait_again(uid, not_before, context);
            self.touch_group(uid);
        }
    }

    /// Lets a pod go on, with this step if it is another one.
    fn release(&mut self, now: Duration, uid: &Arc<str>, step: Option<Step>, context: &mut PlacementContext) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let Stage::Placing(placing) = &mut tracked.stage else { return };
        if !placing.is_held() {
            return;
        }
        placing.step = step.unwrap_or(placing.step);
        placing.release(now);
        self.call(now, uid, context);
    }

    fn placing(&self, uid: &str) -> Option<&Placing> {
        match &self.pods.get(uid)?.stage {
            Stage::Placing(placing) => Some(placing),
            _ => None,
        }
    }

    pub(super) fn position(&self, uid: &Arc<str>) -> Option<Position> {
        Some(Position::of(&self.pods.get(uid)?.pod, uid, Duration::ZERO))
    }

    /// Whether the pod is still nominated as this process has done it, as far as the watch shows.
    fn is_as_left(&self, uid: &str) -> bool {
        let Some(tracked) = self.pods.get(uid) else { return false };
        let Stage::Placing(placing) = &tracked.stage else { return false };
        placing.step != Step::Ungate
            || tracked.is_behind()
            || pod_state::nominated_node(&tracked.pod) == Some(&*placing.node)
    }
}

/// A node, or [`LOCAL`] if it is a machine of the upper cluster.
pub(super) fn place_of<'a>(node: &'a str, cluster: &ClusterState) -> &'a str {
    let is_local = cluster.node(node).is_some() && cluster.virtual_node(node).is_none();
    if is_local { LOCAL } else { node }
}
