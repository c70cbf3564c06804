//! What fit needs to know about a pod.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{NodeSelector, Pod, PodSpec, Toleration, Volume};
use vk_provider::{
    host_port::{HostPort, host_ports},
    node_selector,
    requests::{requests, requests_on_node},
};

use crate::{
    anti_affinity::{self, AntiAffinityTerm},
    resource::{PODS, Resource, ResourceIds},
};

/// The scheduler of pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// What counts of a pod that is on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Its requests, and 1 pod.
    pub(crate) requests: Resource,
    pub(crate) ports: Box<[HostPort]>,
    /// The pods that it keeps away.
    pub(crate) anti_affinity: Arc<[AntiAffinityTerm]>,
}

/// Everything that decides on which nodes a pod fits: pods with equal requirements fit on the same nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Requirements {
    pub(crate) shape: Shape,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) node_affinity: Option<NodeSelector>,
    pub(crate) tolerations: Vec<Toleration>,
    /// Its claims by namespace and name.
    pub(crate) claims: Vec<(String, String)>,
}

/// A pod that needs a node.
#[derive(Clone, Debug)]
pub(crate) struct PodInfo {
    pub(crate) requirements: Requirements,
    pub(crate) namespace: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// A requirement that is not modelled and may keep the pod off nodes that it otherwise fits on.
    pub(crate) unmodelled: Option<&'static str>,
    /// Another scheduler decides, by rules of its own.
    pub(crate) other_scheduler: bool,
    /// The node that the scheduler is making room on for it.
    pub(crate) nominated_node: Option<String>,
}

// === impl Shape ===

impl Shape {
    /// The shape of a pod that is on a node.
    pub(crate) fn on_node(pod: &Pod, names: &mut impl ResourceIds) -> Self {
        Self::new(pod, names.read(&requests_on_node(pod)))
    }

    fn new(pod: &Pod, mut requests: Resource) -> Self {
        requests.set(PODS, 1);
        Self { requests, ports: host_ports(pod).into(), anti_affinity: anti_affinity::required(pod).into() }
    }
}

// === impl PodInfo ===

impl PodInfo {
    pub(crate) fn new(pod: &Pod, names: &mut impl ResourceIds) -> Self {
        let none = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&none);
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let volumes = spec.volumes.as_deref().unwrap_or_default();
        let claim = |volume: &Volume| {
            let claim = volume.persistent_volume_claim.as_ref()?;
            Some((namespace.clone(), claim.claim_name.clone()))
        };
        let scheduler = spec.scheduler_name.as_deref().filter(|name| !name.is_empty());
        Self {
            requirements: Requirements {
                shape: Shape::new(pod, names.read(&requests(pod))),
                node_selector: spec.node_selector.clone().unwrap_or_default(),
                node_affinity: node_selector::required_affinity(spec).cloned(),
                tolerations: spec.tolerations.clone().unwrap_or_default(),
                claims: volumes.iter().filter_map(claim).collect(),
            },
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            unmodelled: unmodelled(spec),
            other_scheduler: scheduler.is_some_and(|name| name != DEFAULT_SCHEDULER),
            nominated_node: pod.status.as_ref().and_then(|status| status.nominated_node_name.clone()),
            namespace,
        }
    }
}

/// The first requirement of a pod that is not modelled. All of them can only take nodes away.
fn unmodelled(spec: &PodSpec) -> Option<&'static str> {
    let affinity = spec.affinity.as_ref();
    let has_affinity = affinity.and_then(|affinity| affinity.pod_affinity.as_ref()).is_some_and(|affinity| {
        is_set(affinity.required_during_scheduling_ignored_during_execution.as_deref())
    });
    let has_anti_affinity =
        affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref()).is_some_and(|affinity| {
            is_set(affinity.required_during_scheduling_ignored_during_execution.as_deref())
        });
    let spreads = spec
        .topology_spread_constraints
        .iter()
        .flatten()
        .any(|constraint| constraint.when_unsatisfiable == "DoNotSchedule");
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    // kube-scheduler requires a node that declares the feature.
    let restarts_all = spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
        container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
    });
    let own_users = spec.host_network == Some(true) && spec.host_users == Some(false);
    let cases = [
        (has_affinity, "required pod affinity"),
        (has_anti_affinity, "required pod anti-affinity"),
        (spreads, "hard topology spread"),
        (is_set(spec.resource_claims.as_deref()), "resource claims"),
        (volumes.iter().any(|volume| volume.ephemeral.is_some()), "unbound claims"),
        (volumes.iter().any(is_attached_disk), "volumes with attach rules of their own"),
        (spec.scheduling_group.is_some(), "a scheduling group"),
        (restarts_all || own_users, "features that nodes declare"),
    ];
    cases.into_iter().find_map(|(applies, why)| applies.then_some(why))
}

fn is_set<T>(list: Option<&[T]>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

/// A disk without a claim, which the plugins VolumeRestrictions and NodeVolumeLimits may keep off a node.
fn is_attached_disk(volume: &Volume) -> bool {
    volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.cinder.is_some()
        || volume.csi.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.iscsi.is_some()
        || volume.rbd.is_some()
}
