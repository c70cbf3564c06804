//! The state machine of placement: what happens in the upper cluster and what nodes answer goes in, and what is to be done comes out.
//!
//! It has no clock, network or randomness of its own. `SchedulingGate` decides about pods that wait behind our gate, `Descheduler` about
//! those that are stuck on a node.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use rand::rngs::StdRng;
use vk_kube::Error;
use vk_supervisor::Now;

use crate::{
    avoid::{self, AvoidTable},
    cluster_state::Changed,
    context::PlacementContext,
    descheduler::{Descheduler, DeschedulerSettings},
    effect::{Answer, ApiCall, CallId, Effect, Input},
    scheduling_gate::{GateSettings, SchedulingGate},
};

/// How often usage is computed anew, and what is not needed any more is forgotten.
const HOUSEKEEPING: Duration = Duration::from_mins(1);
/// An update of the avoid table that failed is repeated after this time.
const RETRY: Duration = Duration::from_secs(10);

/// What placement does.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Removes the gate of pods; `None` leaves them alone.
    pub gates: Option<GateSettings>,
    /// Evicts pods that are stuck; `None` leaves them alone.
    pub descheduler: Option<DeschedulerSettings>,
}

/// The state machine of placement.
#[derive(Debug)]
pub(crate) struct PlacementStateMachine {
    context: PlacementContext,
    gate: Option<SchedulingGate>,
    descheduler: Option<Descheduler>,
    /// Entries of the avoid table that are over, and still in the ConfigMap.
    avoid_ended: BTreeSet<avoid::Controller>,
    /// Those of the call that removes them.
    avoid_sent: BTreeSet<avoid::Controller>,
    avoid_call: Option<CallId>,
    avoid_due: Duration,
    nodes_listed: bool,
    pods_listed: bool,
    succeeded_listed: bool,
    housekeeping: Duration,
    /// Differences that were found and repaired: each is a bug.
    repairs: usize,
}

// === impl PlacementStateMachine ===

impl PlacementStateMachine {
    pub(crate) fn new(settings: Settings, avoid: AvoidTable, rng: StdRng) -> Self {
        Self {
            context: PlacementContext::new(avoid, rng),
            gate: settings.gates.map(SchedulingGate::new),
            descheduler: settings.descheduler.map(Descheduler::new),
            avoid_ended: BTreeSet::new(),
            avoid_sent: BTreeSet::new(),
            avoid_call: None,
            avoid_due: Duration::ZERO,
            nodes_listed: false,
            pods_listed: false,
            succeeded_listed: false,
            housekeeping: HOUSEKEEPING,
            repairs: 0,
        }
    }

    /// Handles events, and does what is due.
    pub(crate) fn handle(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Vec<Effect> {
        self.context.wall = now.wall;
        for input in inputs {
            self.apply(now, input);
        }
        if self.is_listed() {
            if let Some(gate) = &mut self.gate {
                gate.step(now, &mut self.context);
            }
            if let Some(descheduler) = &mut self.descheduler {
                descheduler.step(now, &mut self.context);
            }
            self.keep_house(now);
            self.write_expired(now);
        }
        std::mem::take(&mut self.context.effects)
    }

    /// Whether everything is known that exists.
    fn is_listed(&self) -> bool {
        self.nodes_listed && self.pods_listed && self.succeeded_listed
    }

    fn apply(&mut self, now: Now, input: Input) {
        match input {
            Input::Node(node) => {
                let changed = self.context.cluster.apply_node(*node);
                self.changed(now.elapsed, &changed);
            }
            Input::NodeGone(name) => self.remove_node(now.elapsed, &name),
            Input::NodesListed(names) => {
                let listed: HashSet<&str> = names.iter().map(|name| &**name).collect();
                for name in self.context.cluster.node_names() {
                    if !listed.contains(&*name) {
                        self.remove_node(now.elapsed, &name);
                    }
                }
                self.nodes_listed = true;
            }
            Input::Pod(pod) => self.apply_pod(now, &pod),
            Input::PodGone(pod) => {
                let changed = self.context.cluster.remove_pod(&pod);
                if let Some((gate, uid)) = self.gate.as_mut().zip(pod.metadata.uid.as_deref()) {
                    gate.pod_gone(uid);
                }
                if let Some((descheduler, uid)) = self.descheduler.as_mut().zip(pod.metadata.uid.as_deref()) {
                    descheduler.remove_pod(now.elapsed, uid);
                }
                self.changed(now.elapsed, &changed);
            }
            Input::PodSucceeded(pod) => {
                if let Some(gate) = &mut self.gate {
                    gate.pod_succeeded(&pod);
                }
            }
            Input::SucceededPodGone(uid) => {
                if let Some(gate) = &mut self.gate {
                    gate.succeeded_pod_gone(&uid);
                }
            }
            Input::SucceededPodsListed(uids) => {
                if let Some(gate) = &mut self.gate {
                    gate.succeeded_pods_listed(&uids);
                }
                self.succeeded_listed = true;
            }
            Input::PodsRestarted => self.context.cluster.pods_restarted(),
            Input::PodsListed => {
                if self.context.cluster.pods_listed() {
                    if let Some(gate) = &mut self.gate {
                        gate.pods_listed(&self.context.cluster);
                    }
                    if let Some(descheduler) = &mut self.descheduler {
                        descheduler.pods_listed(now.elapsed, |uid| self.context.cluster.has_pod(uid));
                    }
                    let nodes = self.context.cluster.node_names();
                    self.changed(now.elapsed, &Changed { nodes, local: true, used: None });
                }
                self.pods_listed = true;
            }
            Input::FitAnswered(id, answer) => {
                if self.context.answers.answered(now.elapsed, id, answer)
                    && let Some(gate) = &mut self.gate
                {
                    gate.node_answers_again();
                }
            }
            Input::Answered(id, answer) => self.answered(now, id, &answer),
        }
    }

    fn answered(&mut self, now: Now, id: CallId, answer: &Result<Answer, Error>) {
        if self.avoid_call == Some(id) {
            self.avoid_call = None;
            if answer.is_ok() {
                self.avoid_sent.clear();
            } else {
                self.avoid_ended.append(&mut self.avoid_sent);
                self.avoid_due = now.elapsed + RETRY;
            }
            return;
        }
        if let Some(gate) = &mut self.gate
            && gate.answered(now.elapsed, id, answer, &mut self.context)
        {
            return;
        }
        if let Some(descheduler) = &mut self.descheduler {
            descheduler.answered(now.elapsed, id, answer, &mut self.context);
        }
    }

    /// Removes entries of the avoid table that are over.
    fn write_expired(&mut self, now: Now) {
        if self.avoid_ended.is_empty() || self.avoid_call.is_some() || now.elapsed < self.avoid_due {
            return;
        }
        let id = self.context.ids.next();
        self.avoid_call = Some(id);
        self.avoid_sent = std::mem::take(&mut self.avoid_ended);
        // As it is now: there may be newer entries.
        let changes = self.context.avoid.changes(&self.avoid_sent);
        self.context.effects.push(Effect::Call(id, ApiCall::WriteAvoidTable(changes)));
    }

    fn apply_pod(&mut self, now: Now, pod: &Arc<Pod>) {
        let changed = self.context.cluster.apply_pod(now.elapsed, pod);
        if let Some(gate) = &mut self.gate {
            gate.apply_pod(now, pod, &self.context.cluster);
        }
        if let Some(descheduler) = &mut self.descheduler {
            descheduler.apply_pod(now, pod);
        }
        self.changed(now.elapsed, &changed);
    }

    fn remove_node(&mut self, now: Duration, name: &str) {
        let changed = self.context.cluster.remove_node(name);
        self.context.answers.forget_node(name);
        if let Some(gate) = &mut self.gate {
            gate.node_gone(now, name);
        }
        self.changed(now, &changed);
    }

    fn changed(&mut self, now: Duration, changed: &Changed) {
        for node in changed.nodes.iter().chain(&changed.used) {
            self.context.answers.node_changed(node);
        }
        if let Some(gate) = &mut self.gate {
            gate.cluster_changed(changed);
        }
        if let Some(descheduler) = &mut self.descheduler {
            descheduler.cluster_changed(now, changed);
        }
    }

    fn keep_house(&mut self, now: Now) {
        if now.elapsed < self.housekeeping {
            return;
        }
        let mut ended = self.context.avoid.expire(now.wall);
        self.avoid_ended.append(&mut ended);
        let now = now.elapsed;
        self.housekeeping = now + HOUSEKEEPING;
        if let Some(descheduler) = &mut self.descheduler {
            descheduler.keep_house();
        }
        if let Some(gate) = &mut self.gate {
            gate.keep_house(now);
        }
        self.repairs += self.context.cluster.repair();
        self.context.cluster.expire_held(now);
        self.context.answers.forget_old(now);
        self.context.budget.forget_full(now);
        let gate = self.gate.as_ref();
        let stuck = self.descheduler.as_ref().map(Descheduler::shapes).unwrap_or_default();
        self.context
            .answers
            .retain_shapes(|shape| stuck.contains(shape) || gate.is_some_and(|gate| gate.has_shape(shape)));
    }

    /// When [`handle`](Self::handle) has something to do without an event.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if !self.is_listed() {
            return None;
        }
        let gate = self.gate.as_ref().map_or(Duration::MAX, SchedulingGate::next_deadline);
        let descheduler = self.descheduler.as_ref().map_or(Duration::MAX, Descheduler::next_deadline);
        Some(gate.min(descheduler).min(self.housekeeping))
    }

    /// The number of pods that wait, by what they wait for.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.gate.iter().flat_map(SchedulingGate::waiting)
    }

    /// How many queues were evaluated.
    #[cfg(test)]
    fn evaluations(&self) -> u64 {
        self.gate.as_ref().map_or(0, SchedulingGate::evaluations)
    }

    /// Differences that were found and repaired.
    pub(crate) fn repairs(&self) -> usize {
        self.repairs
    }
}

#[cfg(test)]
mod tests;
