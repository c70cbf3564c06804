//! Pods that their nodes may not have seen yet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;

use crate::{pod_state, query_pod};

/// How long a pod is named in queries after it lost its gate, and after it was bound, in case that its node has not seen it yet.
const HELD_FOR: Duration = Duration::from_mins(2);
/// The most pods that are named in a query. A query has a limited size.
pub(crate) const MAX_HELD: usize = 500;

/// Pods that their nodes may not have seen yet. Queries name them.
#[derive(Debug, Default)]
pub(crate) struct HeldPods {
    /// By node and UID.
    pods: BTreeMap<Arc<str>, BTreeMap<Arc<str>, HeldPod>>,
    /// The node of each pod.
    nodes: HashMap<Arc<str>, Arc<str>>,
}

#[derive(Debug)]
struct HeldPod {
    /// Its parts that use something of a node.
    pod: Arc<Pod>,
    is_bound: bool,
    /// When it need not be named any more; `None` while its gate is being removed, and while it is on trial.
    until: Option<Duration>,
}

// === impl HeldPods ===

impl HeldPods {
    /// The pods of a node, at most [`MAX_HELD`].
    pub(crate) fn on(&self, node: &str) -> Vec<Arc<Pod>> {
        let pods = self.pods.get(node).into_iter().flat_map(BTreeMap::values);
        pods.take(MAX_HELD).map(|held| Arc::clone(&held.pod)).collect()
    }

    /// Whether a query about a node can name so many more pods.
    pub(crate) fn has_space(&self, node: &str, pods: usize) -> bool {
        self.pods.get(node).map_or(0, BTreeMap::len) + pods <= MAX_HELD
    }

    /// Whether a query about a node names this pod, or can.
    pub(crate) fn can_hold(&self, node: &str, uid: &str) -> bool {
        self.nodes.get(uid).is_some_and(|holder| **holder == *node) || self.has_space(node, 1)
    }

    /// Whether the pod is named in queries.
    pub(crate) fn is_held(&self, uid: &str) -> bool {
        self.nodes.contains_key(uid)
    }

    /// Names a pod until it is released.
    pub(crate) fn hold(&mut self, node: Arc<str>, uid: &str, pod: &Pod) {
        self.insert(node, uid, HeldPod { pod: Arc::new(query_pod::held(pod)), is_bound: false, until: None });
    }

    /// Names a pod for some time, which begins when it was first held, and again when it was bound.
    pub(crate) fn hold_for_some_time(&mut self, now: Duration, node: &str, uid: &str, pod: &Pod) {
        let is_bound = pod_state::node(pod).is_some();
        let previous = self.nodes.get(uid).and_then(|node| self.pods.get(node)?.get(uid));
        let since = previous.filter(|held| held.is_bound == is_bound).and_then(|held| held.until);
        let until = since.unwrap_or(now + HELD_FOR);
        if now < until {
            let pod = Arc::new(query_pod::held(pod));
            self.insert(node.into(), uid, HeldPod { pod, is_bound, until: Some(until) });
        } else {
            self.release(uid);
        }
    }

    /// The node has seen the pod, or it does not go there.
    pub(crate) fn release(&mut self, uid: &str) {
        let Some(node) = self.nodes.remove(uid) else { return };
        let Some(pods) = self.pods.get_mut(&node) else { return };
        pods.remove(uid);
        if pods.is_empty() {
            self.pods.remove(&node);
        }
    }

    /// Releases the pods that do not match.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(&str) -> bool) {
        let uids: Vec<_> = self.nodes.keys().filter(|uid| !is_needed(uid)).cloned().collect();
        for uid in uids {
            self.release(&uid);
        }
    }

    /// Releases the pods that their nodes have seen by now.
    pub(crate) fn expire(&mut self, now: Duration) {
        let expired = |held: &HeldPod| held.until.is_some_and(|until| now >= until);
        let pods = self.pods.values().flatten();
        let uids: Vec<_> = pods.filter(|(_, held)| expired(held)).map(|(uid, _)| Arc::clone(uid)).collect();
        for uid in uids {
            self.release(&uid);
        }
    }

    fn insert(&mut self, node: Arc<str>, uid: &str, pod: HeldPod) {
        self.release(uid);
        self.nodes.insert(uid.into(), Arc::clone(&node));
        self.pods.entry(node).or_default().insert(uid.into(), pod);
    }
}
