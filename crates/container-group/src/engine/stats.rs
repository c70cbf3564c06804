//! Usage of pods: at most one call for each batch of groups in 15 seconds, however many readers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::Mutex, time::Instant};
use tracing::debug;
use vk_provider::{
    PodRef, Result,
    ability::{ContainerStats, CpuStats, MemoryStats, NodeStats, PodReference, PodStats, Summary},
};

use super::context::EngineContext;
use crate::{
    GroupBackend,
    backend::{Action, ContainerState, ContainerUsage, GroupRef, GroupStats, Observed},
};

/// How long a summary is good.
const FRESH: Duration = Duration::from_secs(15);

/// A group that runs.
struct RunningGroup {
    pod: PodRef,
    group: GroupRef,
    started: Timestamp,
    /// When each of its containers has started.
    containers: BTreeMap<String, Timestamp>,
}

/// The last summary.
#[derive(Debug, Default)]
pub(super) struct StatsCache(Mutex<Option<(Instant, Summary)>>);

/// The usage of all pods that run. A pod whose usage is not known is left out.
pub(super) async fn summary<B: GroupBackend>(context: &Arc<EngineContext<B>>) -> Result<Summary> {
    // Readers that come meanwhile wait for this one's answer.
    let mut cached = context.stats.0.lock().await;
    if let Some((read, summary)) = &*cached
        && read.elapsed() < FRESH
    {
        return Ok(summary.clone());
    }
    let groups: Vec<RunningGroup> = {
        let state = context.state.lock();
        let running = state.reconciler.present().filter(|(_, group)| !group.has_ended());
        running
            .map(|(pod, group)| {
                let observed = group.observed();
                RunningGroup {
                    pod: pod.clone(),
                    group: group.group().clone(),
                    started: observed.started.or(observed.created).unwrap_or(context.started),
                    containers: starts(observed),
                }
            })
            .collect()
    };
    let batch = context.backend.caps().stats_batch.unwrap_or(1).max(1);
    let mut pods = Vec::new();
    for some in groups.chunks(batch) {
        let asked: Vec<GroupRef> = some.iter().map(|one| one.group.clone()).collect();
        match context.call(Action::Stats, context.backend.stats(&asked)).await {
            Ok(stats) => pods.extend(stats.into_iter().filter_map(|stats| {
                let group = some.iter().find(|one| one.group.id == stats.group.id)?;
                Some(group.pod_stats(stats))
            })),
            Err(error) => debug!(%error, "the usage of some groups is not known"),
        }
    }
    let node = NodeStats {
        node_name: context.settings.node.clone(),
        start_time: context.started,
        cpu: sum_cpu(pods.iter().filter_map(|pod| pod.cpu.as_ref())),
        memory: sum_memory(pods.iter().filter_map(|pod| pod.memory.as_ref())),
        network: None,
        fs: None,
    };
    let summary = Summary { node, pods };
    *cached = Some((Instant::now(), summary.clone()));
    Ok(summary)
}

/// When the containers of a group have started, of those that run.
fn starts(observed: &Observed) -> BTreeMap<String, Timestamp> {
    let all = observed.init_containers.iter().chain(&observed.containers).flatten();
    let started = all.filter_map(|one| match one.state {
        Some(ContainerState::Running { started }) => Some((one.name.clone(), started?)),
        _ => None,
    });
    started.collect()
}

// === impl RunningGroup ===

impl RunningGroup {
    /// The usage of a pod. A container whose start is not known is in the sums only.
    fn pod_stats(&self, stats: GroupStats) -> PodStats {
        let GroupStats { group: _, containers, cpu, memory, network } = stats;
        let pod = &self.pod;
        PodStats {
            pod_ref: PodReference {
                name: pod.name.to_string(),
                namespace: pod.namespace.to_string(),
                uid: pod.uid.to_string(),
            },
            start_time: self.started,
            cpu: cpu.or_else(|| sum_cpu(containers.iter().filter_map(|one| one.cpu.as_ref()))),
            memory: memory.or_else(|| sum_memory(containers.iter().filter_map(|one| one.memory.as_ref()))),
            containers: containers.into_iter().filter_map(|one| self.container_stats(one)).collect(),
            network,
            ephemeral_storage: None,
        }
    }

    fn container_stats(&self, usage: ContainerUsage) -> Option<ContainerStats> {
        let ContainerUsage { name, cpu, memory } = usage;
        let start_time = *self.containers.get(&name)?;
        Some(ContainerStats { name, start_time, cpu, memory, rootfs: None, logs: None })
    }
}

fn sum_cpu<'a>(all: impl Iterator<Item = &'a CpuStats>) -> Option<CpuStats> {
    let add =
        |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one.saturating_add(other));
    all.cloned().reduce(|one, other| CpuStats {
        time: one.time.max(other.time),
        usage_nano_cores: add(one.usage_nano_cores, other.usage_nano_cores),
        usage_core_nano_seconds: add(one.usage_core_nano_seconds, other.usage_core_nano_seconds),
    })
}

fn sum_memory<'a>(all: impl Iterator<Item = &'a MemoryStats>) -> Option<MemoryStats> {
    let mut sum: Option<MemoryStats> = None;
    for one in all {
        let working_set = one.working_set_bytes.unwrap_or_default();
        let before = sum.as_ref().and_then(|sum| sum.working_set_bytes).unwrap_or_default();
        sum = Some(MemoryStats {
            time: sum.as_ref().map_or(one.time, |sum| sum.time.max(one.time)),
            available_bytes: None,
            usage_bytes: None,
            working_set_bytes: Some(before.saturating_add(working_set)),
            rss_bytes: None,
            page_faults: None,
            major_page_faults: None,
        });
    }
    sum
}
