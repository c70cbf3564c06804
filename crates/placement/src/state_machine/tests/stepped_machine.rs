//! A state machine that a test drives step by step, and the objects that it is told of.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use vk_provider::{ability::Verdict, placement::FitAnswer};
use vk_supervisor::Now;

use super::SECOND;
use crate::{
    avoid::AvoidTable,
    effect::{ApiCall, CallId, Effect, Input},
    fit_answers::QueryId,
    names,
    state_machine::{PlacementStateMachine, Settings},
};

/// A state machine and what it has asked for.
pub(super) struct SteppedMachine {
    pub(super) machine: PlacementStateMachine,
    pub(super) now: Duration,
    pub(super) effects: Vec<Effect>,
}

impl SteppedMachine {
    pub(super) fn new(settings: Settings) -> Self {
        let machine = PlacementStateMachine::new(settings, AvoidTable::default(), StdRng::seed_from_u64(1));
        Self { machine, now: SECOND, effects: Vec::new() }
    }

    pub(super) fn handle(&mut self, inputs: Vec<Input>) {
        let wall = "2027-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap() + self.now;
        let effects = self.machine.handle(Now { elapsed: self.now, wall }, inputs);
        self.effects.extend(effects);
    }

    pub(super) fn start(&mut self, mut inputs: Vec<Input>, nodes: &[&str]) {
        inputs.insert(0, Input::PodsRestarted);
        inputs.push(Input::NodesListed(nodes.iter().map(|node| (*node).into()).collect()));
        inputs.push(Input::PodsListed);
        inputs.push(Input::SucceededPodsListed(Vec::new()));
        self.handle(inputs);
    }

    pub(super) fn asks(&mut self) -> Vec<(QueryId, String, usize)> {
        let (asks, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Ask(..)));
        self.effects = rest;
        let ask = |effect| match effect {
            Effect::Ask(id, node, query) => (id, node.metadata.name.clone().unwrap(), query.held.len()),
            _ => unreachable!(),
        };
        asks.into_iter().map(ask).collect()
    }

    pub(super) fn calls(&mut self) -> Vec<(CallId, ApiCall)> {
        let (calls, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Call(..)));
        self.effects = rest;
        let call = |effect| match effect {
            Effect::Call(id, call) => (id, call),
            _ => unreachable!(),
        };
        calls.into_iter().map(call).collect()
    }

    pub(super) fn answer(&mut self, id: QueryId, verdict: Verdict) {
        self.handle(vec![Input::FitAnswered(
            id,
            Ok(FitAnswer { verdicts: vec![verdict], best_nodes: None }),
        )]);
    }
}

pub(super) fn node(name: &str, cpus: u32, change: &Value) -> Input {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": {"virtual-kubelet.io/placement": "fit"}},
        "spec": {"taints": [{"key": "virtual-kubelet.io/provider", "value": "cluster", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": cpus.to_string(), "pods": "100000"}, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    json_patch::merge(&mut node, change);
    Input::Node(Box::new(serde_json::from_value(node).unwrap()))
}

pub(super) fn local(name: &str) -> Input {
    node(name, 100, &json!({"metadata": {"annotations": null}, "spec": null}))
}

pub(super) fn pod(name: &str, cpus: u32, change: &Value) -> Pod {
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "owner", "controller": true});
    let mut pod = json!({
        "metadata": {"namespace": "team", "name": name, "uid": name, "creationTimestamp": "2027-01-01T00:00:00Z", "ownerReferences": [owner]},
        "spec": {
            "schedulingGates": [{"name": names::GATE}],
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpus.to_string()}}}],
        },
        "status": {"phase": "Pending"},
    });
    json_patch::merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

pub(super) fn input(pod: Pod) -> Input {
    Input::Pod(Arc::new(pod))
}

pub(super) fn fits(room: u32) -> Verdict {
    Verdict::Fits { room, fullness: 10 }
}

pub(super) fn refused() -> Verdict {
    Verdict::refused("insufficient cpu", false)
}
