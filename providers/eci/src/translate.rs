//! From a pod to the request for a group. Pure.
//!
//! The field policy decides about what ECI cannot do; the modules here write what it can.

mod annotations;
mod container;
mod environment;
mod handler;
mod network;
mod registry;
mod size;
#[cfg(test)]
mod tests;
mod volume;

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    net::IpAddr,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, PodSpec};
use vk_container_group::{
    backend::{Placement, Plan, Rejection, ResolvedPod, Size},
    plan::{Diagnostics, policy::Choices},
};

use self::annotations::Wishes;
pub(crate) use self::{
    annotations::{Spec, parse_spec},
    size::FILE_LIMITS,
    volume::file_volumes,
};
use crate::{
    api::{Parameters, flatten},
    fields::FIELDS,
};

/// Containers of a group, init containers included.
const MAX_CONTAINERS: usize = 20;
/// Volumes of a group.
const MAX_VOLUMES: usize = 20;
/// The grace period of a pod without one.
const DEFAULT_GRACE: i64 = 30;

/// What a translation needs to know besides the pod.
#[derive(Clone, Debug)]
pub(crate) struct Translator {
    /// The subnets of the groups, in the order of preference.
    pub(crate) v_switches: Vec<String>,
    /// Whether the order is mixed for each pod.
    pub(crate) is_random: bool,
    /// The security group of the groups.
    pub(crate) security_group: String,
    /// The resource group of the groups.
    pub(crate) resource_group: Option<String>,
    /// The name servers of the cluster.
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// The domain of the cluster.
    pub(crate) cluster_domain: String,
    /// What becomes of fields that can be ignored or refused.
    pub(crate) choices: Choices,
    /// Whether files that change are replaced in the running group.
    pub(crate) replaces_files: bool,
}

/// The request for a group, without name, tags, token and placement.
#[derive(Clone, Debug, Default)]
pub(crate) struct EciRequest {
    /// The parameters of `CreateContainerGroup`.
    pub(crate) create: Parameters,
    /// Those of `UpdateContainerGroup` for a change in place: images and resources, and files if they are replaced.
    pub(crate) update: Parameters,
}

// === impl Translator ===

impl Translator {
    /// The plan for a pod, or all reasons against it.
    pub(crate) fn plan(&self, pod: &ResolvedPod) -> Result<Plan<EciRequest>, Rejection> {
        let (plan, diagnostics) = self.translate(pod);
        diagnostics.finish(plan)
    }

    /// The plan, and what is wrong with it.
    pub(crate) fn translate(&self, pod: &ResolvedPod) -> (Plan<EciRequest>, Diagnostics) {
        let mut diagnostics = FIELDS.review(&pod.pod, &self.choices).diagnostics();
        let empty = PodSpec::default();
        let spec = pod.pod.spec.as_ref().unwrap_or(&empty);
        check_owner(pod, &mut diagnostics);
        check_counts(spec, &mut diagnostics);
        let wishes = Wishes::read(&pod.pod, &mut diagnostics);
        let mut request = EciRequest::default();
        let out = &mut request.create;
        self.write_group(spec, &wishes, out, &mut diagnostics);
        network::write(self, pod, spec, out, &mut diagnostics);
        volume::write(pod, spec, out, &mut diagnostics);
        registry::write(pod, out, &mut diagnostics);
        for (list, container, at) in containers(spec) {
            container::write(pod, spec, container, list, at, out, &mut diagnostics);
        }
        let size = size::write(&pod.pod, spec, &wishes, out, &mut diagnostics);
        for (list, container, at) in containers(spec) {
            container::write_update(container, list, at, &mut request.update);
        }
        if self.replaces_files {
            volume::write_update(pod, &mut request.update);
        }
        let mut plan = Plan::new(request);
        plan.placements = self.placements(pod, &wishes);
        plan.size = size.map(|size| first_choice(size, &wishes));
        plan.grace = u64::try_from(grace(spec)).ok().map(Duration::from_secs);
        (plan, diagnostics)
    }

    /// What concerns the group as a whole.
    fn write_group(
        &self,
        spec: &PodSpec,
        wishes: &Wishes,
        out: &mut Parameters,
        diagnostics: &mut Diagnostics,
    ) {
        out.set("RestartPolicy", spec.restart_policy.as_deref().unwrap_or("Always"));
        out.set("TerminationGracePeriodSeconds", grace(spec));
        out.set_some("ActiveDeadlineSeconds", spec.active_deadline_seconds);
        if spec.share_process_namespace == Some(true) {
            out.set("ShareProcessNamespace", true);
        }
        if let Some(os) = &spec.os {
            if os.name == "linux" {
                out.set("OsType", "Linux");
            } else {
                diagnostics.refuse("spec.os", "only linux is supported");
            }
        }
        let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
        for (at, sysctl) in sysctls.enumerate() {
            out.set(flatten("SecurityContext.Sysctl", at, "Name"), &sysctl.name);
            out.set(flatten("SecurityContext.Sysctl", at, "Value"), &sysctl.value);
        }
        out.set("SecurityGroupId", wishes.security_group.as_ref().unwrap_or(&self.security_group));
        out.set_some("ResourceGroupId", wishes.resource_group.as_ref().or(self.resource_group.as_ref()));
        out.extend(&wishes.parameters);
    }

    /// The subnets for each size, the next subnet first: stock is a matter of the zone.
    fn placements(&self, pod: &ResolvedPod, wishes: &Wishes) -> Vec<Placement> {
        let mut zones = wishes.v_switches.clone().unwrap_or_else(|| self.v_switches.clone());
        if wishes.is_random.unwrap_or(self.is_random) && !zones.is_empty() {
            let mut hasher = DefaultHasher::new();
            pod.pod.metadata.uid.hash(&mut hasher);
            let first = usize::try_from(hasher.finish() % zones.len() as u64).unwrap_or_default();
            zones.rotate_left(first);
        }
        let sizes: Vec<Option<String>> = if wishes.specs.is_empty() {
            vec![None]
        } else {
            wishes.specs.iter().map(|spec| Some(spec.to_string())).collect()
        };
        let placement =
            |size: &Option<String>, zone: &String| Placement { zone: Some(zone.clone()), size: size.clone() };
        sizes.iter().flat_map(|size| zones.iter().map(move |zone| placement(size, zone))).collect()
    }
}

/// The init containers and the containers, with the name of their list and their place in it.
fn containers(spec: &PodSpec) -> impl Iterator<Item = (&'static str, &Container, usize)> {
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(at, container)| ("InitContainer", container, at));
    init.chain(spec.containers.iter().enumerate().map(|(at, container)| ("Container", container, at)))
}

/// The path of a container in messages.
fn path(list: &str, container: &Container) -> String {
    let field = if list == "InitContainer" { "initContainers" } else { "containers" };
    format!("spec.{field}[{}]", container.name)
}

fn grace(spec: &PodSpec) -> i64 {
    spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE).max(0)
}

/// The size that is tried first.
fn first_choice(size: Size, wishes: &Wishes) -> Size {
    match wishes.specs.first() {
        Some(Spec::Size { cpu, memory, .. }) => Size { cpu: *cpu, memory: *memory, instance_type: None },
        Some(Spec::InstanceType(name)) => Size { instance_type: Some(name.clone()), ..size },
        None => size,
    }
}

/// A pod for every node would be a group for every virtual node.
fn check_owner(pod: &ResolvedPod, diagnostics: &mut Diagnostics) {
    let owners = pod.pod.metadata.owner_references.iter().flatten();
    if owners.into_iter().any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true)) {
        diagnostics.refuse(
            "metadata.ownerReferences",
            "pods of DaemonSets serve a node, and a group has none: remove the toleration of this node's taint from the DaemonSet",
        );
    }
}

fn check_counts(spec: &PodSpec, diagnostics: &mut Diagnostics) {
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    if count > MAX_CONTAINERS {
        diagnostics.refuse(
            "spec.containers",
            format!("{count} containers, with init containers; a group has at most {MAX_CONTAINERS}"),
        );
    }
    let count = spec.volumes.as_ref().map_or(0, Vec::len);
    if count > MAX_VOLUMES {
        diagnostics.refuse("spec.volumes", format!("{count} volumes; a group has at most {MAX_VOLUMES}"));
    }
}
