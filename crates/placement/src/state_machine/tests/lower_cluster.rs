//! A lower cluster with one resource: what fit says about it, and its scheduler.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use vk_provider::{
    ability::{Cause, Verdict},
    placement::{FitAnswer, FitQuery},
    requests::requests,
};

/// How a virtual node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    Honest,
    /// It says that everything fits.
    Lies,
    /// It answers with an error.
    Fails,
    /// It does not answer.
    Hangs,
    /// It cannot tell.
    Unsure,
    /// It says that everything fits, and takes no pod that it gets on trial.
    Refuses,
}

#[derive(Debug)]
pub(super) struct LowerCluster {
    pub(super) behaviour: Behaviour,
    /// Free CPUs by lower node.
    free: Vec<i64>,
    capacity: i64,
    /// Lower pods by UID: their CPUs, and the lower node if they have one.
    pods: BTreeMap<String, (i64, Option<usize>)>,
    /// The number of queries.
    pub(super) queries: u32,
}

pub(super) fn cpus(pod: &Pod) -> i64 {
    requests(pod).get("cpu").map_or(0, |amount| amount.to_units())
}

impl LowerCluster {
    pub(super) fn new(nodes: usize, cpus: i64) -> Self {
        Self {
            behaviour: Behaviour::Honest,
            free: vec![cpus; nodes],
            capacity: cpus,
            pods: BTreeMap::new(),
            queries: 0,
        }
    }

    pub(super) fn total(&self) -> i64 {
        self.capacity * i64::try_from(self.free.len()).unwrap()
    }

    /// Whether a pod with this many CPUs fits on a lower node now.
    pub(super) fn fits(&self, cpus: i64) -> bool {
        self.free.iter().any(|free| *free >= cpus)
    }

    /// Whether pods with so many CPUs each fit together.
    pub(super) fn fit_together(&self, all: &[i64]) -> bool {
        let mut free = self.free.clone();
        all.iter().all(|cpus| take(&mut free, *cpus).is_some())
    }

    /// The pod is created below. Returns whether it has a lower node.
    pub(super) fn create(&mut self, uid: &str, cpus: i64) -> bool {
        if let Some((_, node)) = self.pods.get(uid) {
            return node.is_some();
        }
        let node = take(&mut self.free, cpus);
        self.pods.insert(uid.to_owned(), (cpus, node));
        node.is_some()
    }

    /// The pod is deleted or has ended below. Returns the UIDs of waiting pods that have a node now.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<String> {
        if let Some((cpus, Some(node))) = self.pods.remove(uid) {
            self.free[node] += cpus;
        }
        let mut placed = Vec::new();
        for (uid, (cpus, node)) in &mut self.pods {
            if node.is_none() {
                *node = take(&mut self.free, *cpus);
                placed.extend(node.map(|_| uid.clone()));
            }
        }
        placed
    }

    /// Whether the lower pod has a lower node.
    pub(super) fn is_scheduled(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|(_, node)| node.is_some())
    }

    /// Whether there is a lower pod.
    pub(super) fn runs(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// The UIDs of pods that wait below.
    pub(super) fn waiting(&self) -> Vec<&str> {
        self.pods.iter().filter(|(_, (_, node))| node.is_none()).map(|(uid, _)| uid.as_str()).collect()
    }

    /// What the node says; `None` if it hangs.
    pub(super) fn answer(&mut self, query: &FitQuery) -> Option<Result<FitAnswer, String>> {
        self.queries += 1;
        let mut free = self.free.clone();
        for held in query.held.iter().filter(|pod| !self.has(pod)) {
            take(&mut free, cpus(held));
        }
        // As in the lower cluster, pods that wait get a node first.
        let waiting: Vec<i64> =
            self.pods.values().filter(|(_, node)| node.is_none()).map(|(cpus, _)| *cpus).collect();
        for cpus in waiting {
            take(&mut free, cpus);
        }
        let verdict = |pod: &Arc<Pod>| {
            let verdict = self.verdict(&free, cpus(pod));
            take(&mut free, cpus(pod));
            verdict
        };
        let verdicts = query.pods.iter().map(verdict).collect();
        match self.behaviour {
            Behaviour::Hangs => None,
            Behaviour::Fails => Some(Err("cannot reach the node".to_owned())),
            _ => Some(Ok(FitAnswer { verdicts, best_nodes: None })),
        }
    }

    fn has(&self, pod: &Arc<Pod>) -> bool {
        pod.metadata.uid.as_ref().is_some_and(|uid| self.pods.contains_key(uid))
    }

    fn verdict(&self, free: &[i64], cpus: i64) -> Verdict {
        match self.behaviour {
            Behaviour::Lies | Behaviour::Refuses => return Verdict::Fits { room: 100, fullness: 1 },
            Behaviour::Unsure => return Verdict::unknown("an autoscaling cluster"),
            _ => {}
        }
        let room: i64 = free.iter().map(|free| free / cpus).sum();
        let most = free.iter().max().copied().unwrap_or(0);
        if room == 0 {
            let nodes = u32::try_from(free.len()).unwrap();
            let why = vec![Cause { text: "insufficient cpu".to_owned(), nodes }];
            return Verdict::Refused { why, lasting: cpus > self.capacity };
        }
        let fullness = 100 * (self.capacity - most + cpus) / self.capacity;
        Verdict::Fits { room: u32::try_from(room).unwrap(), fullness: u8::try_from(fullness).unwrap() }
    }
}

/// Takes CPUs from the emptiest node that has them.
fn take(free: &mut [i64], cpus: i64) -> Option<usize> {
    let (node, most) = free.iter_mut().enumerate().max_by_key(|(_, free)| **free)?;
    if *most < cpus {
        return None;
    }
    *most -= cpus;
    Some(node)
}
