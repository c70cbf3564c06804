//! From what a pod requests to a size that the cloud offers.
//!
//! Clouds give a group one of the sizes that they sell. The rules here always round up: a group is never smaller than the requests of its
//! pod.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use vk_provider::{
    Quantity,
    requests::{self, ResourceList, is_sidecar},
};

use super::Diagnostics;
use crate::backend::Size;

/// CPUs and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// CPUs.
    pub cpu: Quantity,
    /// Memory.
    pub memory: Quantity,
}

/// What a pod requests: requests, and limits where there is no request.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// What the whole group needs: the containers together, or the largest step of the init containers if that is more; pod-level
    /// requests override both; plus the overhead. Zero for what nothing is requested of.
    pub total: Resources,
    /// The sum of the containers that run at the same time, sidecars included, or the pod-level requests: for display.
    pub running: Resources,
    /// The largest of the init containers that end, if there are any: for display.
    pub init: Option<Resources>,
    /// All resources of the group, extended ones included.
    pub all: ResourceList,
}

/// How a cloud rounds sizes.
#[derive(Clone, Copy, Debug)]
pub enum SizeRule {
    /// A list of sizes: ECI, Fargate.
    Table(SizeTable),
    /// Multiples, with a ratio of memory to CPUs: CCI, ACI.
    Steps(SizeSteps),
}

/// A list of sizes.
#[derive(Clone, Copy, Debug)]
pub struct SizeTable {
    /// Thousandths of a CPU and the MiB of memory that go with them, both ascending.
    pub rows: &'static [(i64, &'static [i64])],
    /// Thousandths of a CPU of a pod that requests neither CPUs nor memory.
    pub default_cpu_milli: i64,
    /// MiB of memory of a pod that requests neither.
    pub default_memory_mib: i64,
}

/// Sizes in steps.
#[derive(Clone, Copy, Debug)]
pub struct SizeSteps {
    /// The step of CPUs, in thousandths; positive.
    pub cpu_step_milli: i64,
    /// The least CPUs, in thousandths.
    pub cpu_min_milli: i64,
    /// The most CPUs, in thousandths.
    pub cpu_max_milli: i64,
    /// The step of memory, in MiB; positive.
    pub memory_step_mib: i64,
    /// The least memory, in MiB.
    pub memory_min_mib: i64,
    /// The most memory, in MiB.
    pub memory_max_mib: i64,
    /// The least MiB of memory for each CPU; 0 without a ratio.
    pub min_mib_per_cpu: i64,
    /// The most MiB of memory for each CPU; `None` without a ratio.
    pub max_mib_per_cpu: Option<i64>,
}

/// The size of a pod's group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSize {
    /// What the pod requests.
    pub requested: Requested,
    /// What the cloud gives.
    pub effective: Size,
}

/// No size of the cloud is large enough.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{requested} is more than the largest size, {largest}: request less")]
pub struct TooLarge {
    /// What was requested.
    pub requested: Resources,
    /// The largest size.
    pub largest: Resources,
}

/// What a pod requests.
pub fn requested(pod: &Pod) -> Requested {
    let pod = with_limits_as_requests(pod);
    let all = requests::requests(&pod);
    let mut running = pod.clone();
    if let Some(containers) = running.spec.as_mut().and_then(|spec| spec.init_containers.as_mut()) {
        containers.retain(is_sidecar);
    }
    let running = Resources::of(&requests::requests(&running));
    let spec = pod.spec.unwrap_or_default();
    let init = spec.init_containers.iter().flatten().filter(|container| !is_sidecar(container));
    let init = init.map(of_container).reduce(Resources::max);
    Requested { total: Resources::of(&all), running, init, all }
}

/// The size of a pod's group. A pod that is too large is refused.
pub fn group_size(pod: &Pod, rule: &SizeRule, diagnostics: &mut Diagnostics) -> Option<GroupSize> {
    let requested = requested(pod);
    match rule.round_up(requested.total) {
        Ok(Resources { cpu, memory }) => {
            Some(GroupSize { requested, effective: Size { cpu, memory, instance_type: None } })
        }
        Err(too_large) => {
            let whole = pod.spec.as_ref().is_some_and(|spec| spec.resources.is_some());
            let field =
                if whole { "spec.resources.requests" } else { "spec.containers[*].resources.requests" };
            diagnostics.refuse(field, too_large.to_string());
            None
        }
    }
}

/// The pod with a request for everything that has only a limit, as the API server completes it.
fn with_limits_as_requests(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        let all = containers.map(|container| &mut container.resources).chain([&mut spec.resources]);
        all.flatten().for_each(complete_requests);
    }
    pod
}

fn complete_requests(resources: &mut ResourceRequirements) {
    for (name, limit) in resources.limits.iter().flatten() {
        let requests = resources.requests.get_or_insert_default();
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

fn of_container(container: &Container) -> Resources {
    let requested = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    Resources::of(&requests::amounts(requested))
}

// === impl SizeRule ===

impl SizeRule {
    /// The smallest size that is not smaller than `requested`.
    pub fn round_up(&self, requested: Resources) -> Result<Resources, Box<TooLarge>> {
        let cpu = requested.cpu.to_milli().max(0);
        let memory = mib(requested.memory).max(0);
        let (found, largest) = match self {
            Self::Table(table) => (table.round_up(cpu, memory), table.largest()),
            Self::Steps(steps) => (steps.round_up(cpu, memory), (steps.cpu_max_milli, steps.memory_max_mib)),
        };
        let size = |(cpu, memory): (i64, i64)| Resources::new(cpu, memory);
        found.map(size).ok_or_else(|| Box::new(TooLarge { requested, largest: size(largest) }))
    }
}

impl SizeTable {
    fn round_up(&self, cpu: i64, memory: i64) -> Option<(i64, i64)> {
        let (cpu, memory) = if (cpu, memory) == (0, 0) {
            (self.default_cpu_milli, self.default_memory_mib)
        } else {
            (cpu, memory)
        };
        let mut large_enough = self.rows.iter().filter(|(cpus, _)| *cpus >= cpu);
        large_enough.find_map(|(cpus, choices)| {
            let memory = choices.iter().find(|choice| **choice >= memory)?;
            Some((*cpus, *memory))
        })
    }

    fn largest(&self) -> (i64, i64) {
        let cpu = self.rows.last().map_or(0, |(cpu, _)| *cpu);
        let memory = self.rows.iter().flat_map(|(_, choices)| choices.iter()).max();
        (cpu, memory.copied().unwrap_or(0))
    }

    /// All sizes: thousandths of a CPU, and MiB.
    pub fn sizes(&self) -> impl Iterator<Item = (i64, i64)> {
        self.rows.iter().flat_map(|(cpu, choices)| choices.iter().map(|memory| (*cpu, *memory)))
    }
}

impl SizeSteps {
    fn round_up(&self, cpu: i64, memory: i64) -> Option<(i64, i64)> {
        // The CPUs that the memory needs, then the memory that the CPUs need. More memory never needs more CPUs than that: the least
        // memory of a number of CPUs is below the most.
        let cpu_for_memory = |memory: i64| {
            self.max_mib_per_cpu.map_or(0, |ratio| divided_up(memory.saturating_mul(1000), ratio))
        };
        let mut cpu = stepped_up(cpu.max(self.cpu_min_milli), self.cpu_step_milli);
        let mut memory = stepped_up(memory.max(self.memory_min_mib), self.memory_step_mib);
        cpu = cpu.max(stepped_up(cpu_for_memory(memory), self.cpu_step_milli));
        let least = divided_up(cpu.saturating_mul(self.min_mib_per_cpu), 1000);
        memory = memory.max(stepped_up(least, self.memory_step_mib));
        // A step of memory may be more than the ratio allows.
        cpu = cpu.max(stepped_up(cpu_for_memory(memory), self.cpu_step_milli));
        (cpu <= self.cpu_max_milli && memory <= self.memory_max_mib).then_some((cpu, memory))
    }
}

fn stepped_up(amount: i64, step: i64) -> i64 {
    divided_up(amount, step).saturating_mul(step)
}

fn divided_up(amount: i64, by: i64) -> i64 {
    let by = by.max(1);
    amount / by + i64::from(amount % by > 0)
}

fn mib(memory: Quantity) -> i64 {
    divided_up(memory.to_units(), 1 << 20)
}

// === impl Resources ===

impl Resources {
    /// From thousandths of a CPU and MiB of memory.
    pub fn new(cpu_milli: i64, memory_mib: i64) -> Self {
        Self { cpu: Quantity::milli(cpu_milli), memory: Quantity::bytes(memory_mib.saturating_mul(1 << 20)) }
    }

    fn of(list: &ResourceList) -> Self {
        let amount = |name: &str| list.get(name).copied();
        Self {
            cpu: amount("cpu").unwrap_or(Quantity::units(0)),
            memory: amount("memory").unwrap_or(Quantity::bytes(0)),
        }
    }

    fn max(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cpu, {}", self.cpu, self.memory)
    }
}

// === impl GroupSize ===

impl GroupSize {
    /// Whether the cloud gives more than the pod requests.
    pub fn is_rounded(&self) -> bool {
        let Resources { cpu, memory } = self.requested.total;
        self.effective.cpu != cpu || self.effective.memory != memory
    }
}

#[cfg(test)]
mod tests;
