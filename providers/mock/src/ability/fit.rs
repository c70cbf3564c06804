//! Fit: the node's capacity is divided among lower nodes, and each pod is on one of them. A script can replace the answers.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc};

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeStatus, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use parking_lot::Mutex;
use serde::Deserialize;
use vk_fit::{Query, Snapshot};
use vk_provider::{
    Quantity,
    ability::{Fit, LowerNode, Verdict},
};

use crate::mock::Mock;

/// How the mock answers whether pods fit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct FitScript {
    /// The number of lower nodes that share the node's capacity evenly.
    pub lower_nodes: NonZeroU32,
    /// Answers that it is unknown whether a pod fits, for this reason.
    pub unknown: Option<String>,
    /// Refuses every pod, for this reason.
    pub refused: Option<String>,
    /// Whether the refusal lasts.
    pub lasting: bool,
}

/// The lower nodes of a mock. Only the requests and host ports of pods count: selectors, affinity and the like are about upper nodes.
#[derive(Debug)]
pub(crate) struct LowerNodes(Mutex<State>);

#[derive(Debug)]
struct State {
    script: FitScript,
    capacity: BTreeMap<String, Quantity>,
    snapshot: Snapshot,
}

// === impl FitScript ===

impl Default for FitScript {
    fn default() -> Self {
        Self { lower_nodes: NonZeroU32::MIN, unknown: None, refused: None, lasting: false }
    }
}

impl FitScript {
    /// Checks what was configured. The error says what to write instead.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.unknown.is_some() && self.refused.is_some() {
            return Err("a pod cannot be unknown and refused: write one of them".to_owned());
        }
        if self.lasting && self.refused.is_none() {
            return Err("`lasting` does nothing without `refused`".to_owned());
        }
        Ok(())
    }

    fn verdict(&self) -> Option<Verdict> {
        match (&self.unknown, &self.refused) {
            (Some(why), _) => Some(Verdict::unknown(why)),
            (None, Some(why)) => Some(Verdict::refused(why, self.lasting)),
            (None, None) => None,
        }
    }
}

// === impl LowerNodes ===

impl LowerNodes {
    pub(crate) fn new(script: FitScript, capacity: BTreeMap<String, Quantity>) -> Self {
        let mut state = State { script, capacity, snapshot: Snapshot::default() };
        state.apply_nodes();
        Self(Mutex::new(state))
    }

    pub(crate) fn set_script(&self, script: FitScript) {
        let mut state = self.0.lock();
        for number in script.lower_nodes.get()..state.script.lower_nodes.get() {
            state.snapshot.remove_node(&node_name(number));
        }
        state.script = script;
        state.apply_nodes();
    }

    pub(crate) fn set_capacity(&self, capacity: BTreeMap<String, Quantity>) {
        let mut state = self.0.lock();
        state.capacity = capacity;
        state.apply_nodes();
    }

    /// Puts a pod on the emptiest lower node, or on the one that lacks the least if it fits nowhere.
    pub(crate) fn add(&self, pod: &Pod) {
        let mut state = self.0.lock();
        let mut pod = lower_pod(pod);
        if let Some(uid) = &pod.metadata.uid {
            state.snapshot.remove_pod(uid);
        }
        let best = state.snapshot.best_nodes(&Query::default(), &pod, 1).pop();
        let node = best.map_or_else(|| node_name(0), |best| best.name);
        pod.spec.get_or_insert_default().node_name = Some(node);
        state.snapshot.apply_pod(&pod);
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.0.lock().snapshot.remove_pod(uid);
    }
}

// === impl State ===

impl State {
    fn apply_nodes(&mut self) {
        let count = i64::from(self.script.lower_nodes.get());
        let part = |(name, amount): (&String, &Quantity)| {
            let part = match name.as_str() {
                "cpu" => Quantity::milli(amount.to_milli() / count),
                _ => Quantity::units(amount.to_units() / count),
            };
            (name.clone(), part.into())
        };
        let ready = NodeCondition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            ..NodeCondition::default()
        };
        let status = NodeStatus {
            allocatable: Some(self.capacity.iter().map(part).collect()),
            conditions: Some(vec![ready]),
            ..NodeStatus::default()
        };
        for number in 0..self.script.lower_nodes.get() {
            let mut node = Node { status: Some(status.clone()), ..Node::default() };
            node.metadata.name = Some(node_name(number));
            self.snapshot.apply_node(&node);
        }
    }
}

fn node_name(number: u32) -> String {
    format!("lower-{number}")
}

/// The parts of a pod that count.
fn lower_pod(pod: &Pod) -> Pod {
    let spec = pod.spec.as_ref().map(|spec| PodSpec {
        containers: spec.containers.clone(),
        init_containers: spec.init_containers.clone(),
        overhead: spec.overhead.clone(),
        resources: spec.resources.clone(),
        ..PodSpec::default()
    });
    let mut lower = Pod { spec, ..Pod::default() };
    lower.metadata.namespace.clone_from(&pod.metadata.namespace);
    lower.metadata.uid.clone_from(&pod.metadata.uid);
    lower
}

impl Fit for Mock {
    fn fit(&self, held: &[Arc<Pod>], pods: &[Arc<Pod>], without: &[Arc<str>]) -> Vec<Verdict> {
        let state = self.0.lower_nodes.0.lock();
        if let Some(verdict) = state.script.verdict() {
            return vec![verdict; pods.len()];
        }
        let lower = |pods: &[Arc<Pod>]| pods.iter().map(|pod| Arc::new(lower_pod(pod))).collect::<Vec<_>>();
        let gone = |uid: &Arc<str>| {
            let metadata = ObjectMeta { uid: Some(uid.to_string()), ..ObjectMeta::default() };
            Arc::new(Pod { metadata, ..Pod::default() })
        };
        let (held, pods) = (lower(held), lower(pods));
        let without: Vec<Arc<Pod>> = without.iter().map(gone).collect();
        state.snapshot.fit(&Query { held: &held, pods: &pods, without: &without, nodes: None })
    }

    fn best_nodes(&self, pod: &Pod, count: usize) -> Vec<LowerNode> {
        self.0.lower_nodes.0.lock().snapshot.best_nodes(&Query::default(), &lower_pod(pod), count)
    }
}
