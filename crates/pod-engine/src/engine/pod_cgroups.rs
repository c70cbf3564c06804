//! The cgroups of a node, as a kubelet creates them: one for all pods, limited to what the node has for them; in it one for each
//! of the two lower QoS classes, with its weight; and one for each pod, with its limits. Guaranteed pods are directly in the first
//! one, beside the two classes.

use std::{collections::BTreeMap, io, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tracing::warn;
use vk_provider::{PodRef, quantity::Quantity, requests};

use crate::{
    Settings,
    backend::Resources,
    cgroup::HostCgroups,
    spec::{self, CgroupDriver, HostFeatures, Qos},
};

/// All classes, in each of which a pod whose spec is unknown can be.
const CLASSES: [Qos; 3] = [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort];
const PREFIX: &str = "pod";

/// The cgroups of a node and its pods. All calls block on files.
#[derive(Debug)]
pub(super) struct PodCgroups {
    cgroups: HostCgroups,
    root: String,
    allocatable: Resources,
    /// CPU requests of burstable pods, in milli CPUs by UID: their sum is the weight of the class.
    burstable: Mutex<BTreeMap<Arc<str>, i64>>,
}

// === impl PodCgroups ===

impl PodCgroups {
    /// `None` if the settings leave cgroups to the runtime.
    pub(super) fn new(settings: &Settings) -> Option<Self> {
        Some(Self {
            cgroups: settings.cgroups.clone()?,
            root: settings.cgroup_root.clone()?,
            allocatable: settings.allocatable.clone(),
            burstable: Mutex::default(),
        })
    }

    /// Creates the cgroups of the node and of the classes, and sets their limits and weights again.
    pub(super) fn set_up(&self) -> io::Result<()> {
        self.cgroups.create(&self.root, Some(&self.allocatable))?;
        self.cgroups.create(&self.class(Qos::BestEffort), Some(&spec::class_limits(0)))?;
        self.set_burstable_weight(&self.burstable.lock())
    }

    /// Creates the cgroup of a pod that is started or was found running, and sets its limits. The pod counts for its class from
    /// here on.
    pub(super) fn ensure(&self, pod: &Pod, reference: &PodRef, features: &HostFeatures) -> io::Result<()> {
        let class = spec::qos(pod);
        if class == Qos::Burstable {
            let request = requests::requests(pod).get("cpu").copied().map_or(0, Quantity::to_milli);
            let mut burstable = self.burstable.lock();
            burstable.insert(Arc::clone(&reference.uid), request);
            self.set_burstable_weight(&burstable)?;
        }
        let path = self.pod(class, &reference.uid);
        self.cgroups.create(&path, Some(&spec::pod_limits(pod, features)))
    }

    /// A pod has ended: it no longer counts for its class.
    pub(super) fn release(&self, uid: &str) {
        let mut burstable = self.burstable.lock();
        if burstable.remove(uid).is_some()
            && let Err(error) = self.set_burstable_weight(&burstable)
        {
            warn!(%error, "cannot set the weight of burstable pods; trying again later");
        }
    }

    /// Removes the cgroup of a pod that is gone. What is left in it is killed.
    pub(super) fn remove(&self, uid: &str) -> io::Result<()> {
        self.release(uid);
        for path in CLASSES.map(|class| self.pod(class, uid)) {
            if self.cgroups.exists(&path) {
                self.cgroups.kill(&path)?;
                self.cgroups.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the empty cgroups of unknown pods, which a killed process left behind.
    pub(super) fn remove_unknown(&self, is_known: impl Fn(&str) -> bool) {
        for class in CLASSES {
            let parent = self.class(class);
            for name in self.cgroups.children(&parent) {
                if name.strip_prefix(PREFIX).is_some_and(|uid| !is_known(uid)) {
                    self.cgroups.remove_empty(&format!("{parent}/{name}"));
                }
            }
        }
    }

    /// Called with the lock held, so that an older sum never replaces a newer one.
    fn set_burstable_weight(&self, requests: &BTreeMap<Arc<str>, i64>) -> io::Result<()> {
        let sum = requests.values().fold(0_i64, |sum, request| sum.saturating_add(*request));
        self.cgroups.create(&self.class(Qos::Burstable), Some(&spec::class_limits(sum)))
    }

    fn class(&self, class: Qos) -> String {
        spec::class_cgroup(&self.root, CgroupDriver::Cgroupfs, class)
    }

    fn pod(&self, class: Qos, uid: &str) -> String {
        spec::pod_cgroup(&self.root, CgroupDriver::Cgroupfs, class, uid)
    }
}

#[cfg(test)]
mod tests;
