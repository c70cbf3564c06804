//! Pods as queries name them.
//!
//! Nodes get what decides whether a pod fits, and nothing else of it: a node that was taken over is asked like any other. Placement itself
//! does not keep the rest either: anybody can make a pod with a megabyte of it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, ExecAction, HTTPGetAction, Pod, PodSpec, Probe, ResourceRequirements,
    },
    apimachinery::pkg::{api::resource::Quantity as ApiQuantity, apis::meta::v1::ObjectMeta},
};
use vk_kube::Field;
use vk_provider::{
    placement::{FitQuery, json_objects},
    requests::{ResourceList, is_sidecar, limits, requests},
};

use crate::names;

/// Limits of a held pod: a query may name hundreds of them. What is larger is reduced further.
const MAX_HELD_BYTES: usize = 8 << 10;
const MAX_HELD_OBJECTS: usize = 100;
/// All pods of a group together, in bytes: there are as many held pods again.
pub(crate) const MAX_GROUP_BYTES: usize = 1 << 20;
/// The domain of annotations that providers may look at.
const DOMAIN: &str = "virtual-kubelet.io";
/// The annotation that names the AppArmor profile of a container in older clusters.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io";
/// What [`strip`] and [`disclosed`] remove of a pod but for annotations, for decoding.
pub(crate) const UNDISCLOSED: &[Field] = {
    const HANDLER: &[Field] = &[
        Field::with("exec", &[Field::skipped("command")]),
        Field::with("httpGet", &[Field::skipped("httpHeaders"), Field::skipped("path")]),
    ];
    const CONTAINER: &[Field] = &[
        Field::skipped("args"),
        Field::skipped("command"),
        Field::skipped("env"),
        Field::skipped("envFrom"),
        Field::skipped("workingDir"),
        Field::with("livenessProbe", HANDLER),
        Field::with("readinessProbe", HANDLER),
        Field::with("startupProbe", HANDLER),
        Field::with("lifecycle", &[Field::with("postStart", HANDLER), Field::with("preStop", HANDLER)]),
    ];
    &[
        Field::with("metadata", &[Field::skipped("managedFields"), Field::skipped("finalizers")]),
        Field::with(
            "spec",
            &[
                Field::skipped("ephemeralContainers"),
                Field::with("containers", CONTAINER),
                Field::with("initContainers", CONTAINER),
            ],
        ),
    ]
};
/// Resources that every node has.
const BASE_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// The query as nodes get it.
pub(crate) fn disclosed_query(query: &FitQuery) -> FitQuery {
    let all = |pods: &[Arc<Pod>]| pods.iter().map(|pod| Arc::new(disclosed(pod))).collect();
    FitQuery {
        held: all(&query.held),
        pods: all(&query.pods),
        without: query.without.clone(),
        explain: query.explain,
    }
}

/// The pod without what does not decide about where it may go: environments, commands, foreign annotations, and its status.
pub(crate) fn disclosed(pod: &Pod) -> Pod {
    let mut spec = pod.spec.clone();
    if let Some(spec) = &mut spec {
        spec.ephemeral_containers = None;
        spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(strip);
    }
    let metadata = ObjectMeta {
        generate_name: pod.metadata.generate_name.clone(),
        labels: pod.metadata.labels.clone(),
        owner_references: pod.metadata.owner_references.clone(),
        annotations: Some(deciding_annotations(pod)).filter(|all| !all.is_empty()),
        ..identity(pod)
    };
    Pod { metadata, spec, status: None }
}

/// Removes the environment and the commands of a container, like [`UNDISCLOSED`]. A field that is not named here stays: what a provider rejects because of it must be
/// rejected, too.
fn strip(container: &mut Container) {
    container.args = None;
    container.command = None;
    container.env = None;
    container.env_from = None;
    container.working_dir = None;
    let exec = |exec: &mut Option<ExecAction>| exec.iter_mut().for_each(|action| action.command = None);
    let http = |http: &mut Option<HTTPGetAction>| {
        if let Some(action) = http {
            action.http_headers = None;
            action.path = None;
        }
    };
    let probes =
        [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    for Probe { exec: command, http_get, .. } in probes.into_iter().flatten() {
        exec(command);
        http(http_get);
    }
    let hooks = container.lifecycle.iter_mut().flat_map(|all| [&mut all.post_start, &mut all.pre_stop]);
    for hook in hooks.flatten() {
        exec(&mut hook.exec);
        http(&mut hook.http_get);
    }
}

/// The parts of a pod that use something of a node. They have a limited size, although anybody can make a pod of a megabyte: of a larger one the
/// rules are left out, then all containers but one that requests as much, and then what few nodes have.
pub(crate) fn held(pod: &Pod) -> Pod {
    let with_rules = || {
        let spec = pod.spec.as_ref().map(|spec| PodSpec {
            affinity: spec.affinity.clone(),
            scheduler_name: spec.scheduler_name.clone(),
            ..resources_of(spec)
        });
        let metadata = ObjectMeta {
            labels: pod.metadata.labels.clone(),
            annotations: Some(deciding_annotations(pod)),
            ..identity(pod)
        };
        Pod { metadata, spec, status: None }
    };
    let reductions: [&dyn Fn() -> Pod; 3] =
        [&with_rules, &|| resources_only(pod), &|| in_one_container(pod, |_| true, host_ports(pod))];
    let smaller = reductions.into_iter().map(|reduce| reduce()).find(has_size_of_held_pod);
    smaller.unwrap_or_else(|| in_one_container(pod, |name| BASE_RESOURCES.contains(&name), Vec::new()))
}

fn has_size_of_held_pod(pod: &Pod) -> bool {
    let json = serde_json::to_vec(pod);
    json.is_ok_and(|json| json.len() <= MAX_HELD_BYTES && json_objects(&json) <= MAX_HELD_OBJECTS)
}

/// The pod without anything that decides where it may go, but for its resources and ports.
pub(crate) fn resources_only(pod: &Pod) -> Pod {
    Pod { metadata: identity(pod), spec: pod.spec.as_ref().map(resources_of), status: None }
}

fn resources_of(spec: &PodSpec) -> PodSpec {
    let used = |container: &Container| Container {
        name: container.name.clone(),
        image: container.image.clone(),
        resources: container.resources.clone(),
        ports: container.ports.clone(),
        restart_policy: container.restart_policy.clone(),
        ..Container::default()
    };
    let containers = |all: &[Container]| all.iter().map(used).collect::<Vec<_>>();
    PodSpec {
        containers: containers(&spec.containers),
        init_containers: spec.init_containers.as_deref().map(containers),
        overhead: spec.overhead.clone(),
        resources: spec.resources.clone(),
        tolerations: spec.tolerations.clone(),
        node_selector: spec.node_selector.clone(),
        ..quota_scopes_of(spec)
    }
}

/// What decides, beside resources, by which quotas the pod counts.
fn quota_scopes_of(spec: &PodSpec) -> PodSpec {
    PodSpec {
        active_deadline_seconds: spec.active_deadline_seconds,
        host_network: spec.host_network,
        priority: spec.priority,
        priority_class_name: spec.priority_class_name.clone(),
        ..PodSpec::default()
    }
}

/// A pod with one container, which requests what the pod does of these resources, and has these host ports.
fn in_one_container(pod: &Pod, is_named: impl Fn(&str) -> bool, ports: Vec<ContainerPort>) -> Pod {
    let list = |all: ResourceList| -> Option<BTreeMap<String, ApiQuantity>> {
        Some(
            all.into_iter()
                .filter(|(name, _)| is_named(name))
                .map(|(name, amount)| (name, amount.into()))
                .collect(),
        )
    };
    let resources = ResourceRequirements {
        requests: list(requests(pod)),
        limits: list(limits(pod)),
        ..ResourceRequirements::default()
    };
    let container = Container {
        name: "all".to_owned(),
        ports: Some(ports).filter(|ports| !ports.is_empty()),
        resources: Some(resources),
        ..Container::default()
    };
    let spec = pod.spec.as_ref().map(|spec| PodSpec { containers: vec![container], ..quota_scopes_of(spec) });
    Pod { metadata: identity(pod), spec, status: None }
}

/// The host ports of the containers and sidecars.
fn host_ports(pod: &Pod) -> Vec<ContainerPort> {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| {
        let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
        sidecars.chain(&spec.containers)
    });
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter(|port| port.host_port.is_some_and(|number| number > 0)).cloned().collect()
}

fn deciding_annotations(pod: &Pod) -> BTreeMap<String, String> {
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| decides(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Whether an annotation says something about where the pod may go: those of providers and of conversion, and profiles that a provider may not
/// allow.
pub(crate) fn decides(annotation: &str) -> bool {
    let domain = annotation.split_once('/').map_or("", |(domain, _)| domain);
    let is_ours = domain.strip_suffix(DOMAIN).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    is_ours || domain == APP_ARMOR || annotation == names::CLUSTER_SELECTOR
}

fn identity(pod: &Pod) -> ObjectMeta {
    ObjectMeta {
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests;
