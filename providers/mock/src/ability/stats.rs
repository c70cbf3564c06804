//! Stats: scripted or small default values for each container, with counters that grow over time.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ContainerStatus;
use vk_provider::{
    Result,
    ability::{
        ContainerStats, CpuStats, FsStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats,
        PodReference, PodStats, Stats, Summary,
    },
};

use super::statuses;
use crate::{
    fault::Call,
    fnv,
    mock::Mock,
    simulator::{ListedPod, UsageCounter, usage::grown},
    time::between,
};

const MIB: u64 = 1024 * 1024;
/// CPU usage of the node itself, in billionths of a core.
const NODE_CPU: u64 = 50_000_000;
const NODE_MEMORY: u64 = 200 * MIB;

/// The CPU time of all pods of a node, including those that no longer exist, so that the node's counter never decreases.
#[derive(Debug, Default)]
pub(crate) struct CpuTimeTotal {
    at: Timestamp,
    gone: u64,
    there: HashMap<Arc<str>, u64>,
}

// === impl CpuTimeTotal ===

impl CpuTimeTotal {
    /// Updates the current pods and returns the total in nanoseconds.
    fn count(&mut self, pods: &[ListedPod], now: Timestamp) -> u64 {
        // A concurrent call may arrive with an older list: pods that are gone must not be counted twice.
        if now >= self.at {
            let total =
                |listed: &ListedPod| listed.meters.values().map(|meter| meter.total(now)).sum::<u64>();
            let there = pods.iter().map(|listed| (Arc::clone(&listed.pod.uid), total(listed))).collect();
            let before = std::mem::replace(&mut self.there, there);
            let left = before.iter().filter(|(uid, _)| !self.there.contains_key(*uid));
            self.gone += left.map(|(_, spent)| spent).sum::<u64>();
            self.at = now;
        }
        self.gone + self.there.values().sum::<u64>()
    }
}

#[async_trait]
impl Stats for Mock {
    async fn summary(&self) -> Result<Summary> {
        let guard = self.0.faults.enter(Call::Stats).await?;
        // Before the list, to tell which of two concurrent lists is older.
        let now = self.0.clock.now();
        let summary = self.0.connection.list(&self.0.node).await.map(|pods| self.summarise(&pods, now));
        guard.finish(summary)
    }
}

impl Mock {
    fn summarise(&self, pods: &[ListedPod], now: Timestamp) -> Summary {
        let spent = grown(NODE_CPU, self.0.opened, now) + self.0.cpu_time.lock().count(pods, now);
        let pods: Vec<PodStats> = pods.iter().filter_map(|listed| pod_stats(listed, now)).collect();
        let sum = |figure: fn(&PodStats) -> Option<u64>| pods.iter().filter_map(figure).sum::<u64>();
        let rate = NODE_CPU + sum(|pod| pod.cpu.as_ref()?.usage_nano_cores);
        let memory = NODE_MEMORY + sum(|pod| pod.memory.as_ref()?.working_set_bytes);
        let capacity = self.0.capacity.lock().get("memory").copied();
        let capacity = capacity.and_then(|memory| u64::try_from(memory.to_units()).ok());
        let node = NodeStats {
            node_name: self.0.node.to_string(),
            start_time: self.0.opened,
            cpu: Some(cpu(rate, spent, now)),
            memory: Some(MemoryStats {
                available_bytes: capacity.map(|capacity| capacity.saturating_sub(memory)),
                ..used(memory, now)
            }),
            network: Some(network(fnv(self.0.node.as_bytes()), self.0.opened, now)),
            fs: Some(files(sum(|pod| pod.ephemeral_storage.as_ref()?.used_bytes), now)),
        };
        Summary { node, pods }
    }
}

/// Stats of a running pod.
fn pod_stats(listed: &ListedPod, now: Timestamp) -> Option<PodStats> {
    let start_time = listed.status.start_time.as_ref()?.0;
    let containers: Vec<ContainerStats> =
        statuses(&listed.status).filter_map(|status| container_stats(listed, status, now)).collect();
    if containers.is_empty() {
        return None;
    }
    let sum = |figure: fn(&ContainerStats) -> Option<u64>| containers.iter().filter_map(figure).sum::<u64>();
    let rate = sum(|container| container.cpu.as_ref()?.usage_nano_cores);
    let memory = sum(|container| container.memory.as_ref()?.working_set_bytes);
    let disk = sum(|container| container.rootfs.as_ref()?.used_bytes);
    Some(PodStats {
        pod_ref: PodReference {
            name: listed.pod.name.to_string(),
            namespace: listed.pod.namespace.to_string(),
            uid: listed.pod.uid.to_string(),
        },
        start_time,
        // Includes ended instances, so that the counter does not decrease on a restart.
        cpu: Some(cpu(rate, listed.meters.values().map(|meter| meter.total(now)).sum(), now)),
        memory: Some(used(memory, now)),
        network: Some(network(fnv(listed.pod.uid.as_bytes()), start_time, now)),
        ephemeral_storage: Some(files(disk, now)),
        containers,
    })
}

fn container_stats(listed: &ListedPod, status: &ContainerStatus, now: Timestamp) -> Option<ContainerStats> {
    let started = status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0;
    let meter: &UsageCounter = listed.meters.get(&status.name)?;
    let seed = fnv(format!("{}/{}", listed.pod.uid, status.name).as_bytes());
    Some(ContainerStats {
        name: status.name.clone(),
        start_time: started,
        cpu: Some(cpu(meter.usage.cpu, meter.spent(now), now)),
        memory: Some(used(meter.usage.memory, now)),
        rootfs: Some(files(seed % 16 * MIB, now)),
        logs: Some(files(between(started, now).as_secs() * 32, now)),
    })
}

fn cpu(rate: u64, spent: u64, time: Timestamp) -> CpuStats {
    CpuStats { time, usage_nano_cores: Some(rate), usage_core_nano_seconds: Some(spent) }
}

fn used(bytes: u64, time: Timestamp) -> MemoryStats {
    MemoryStats {
        time,
        available_bytes: None,
        usage_bytes: Some(bytes + bytes / 4),
        working_set_bytes: Some(bytes),
        rss_bytes: Some(bytes / 2),
        page_faults: Some(bytes / 4096),
        major_page_faults: Some(0),
    }
}

fn files(used: u64, time: Timestamp) -> FsStats {
    let capacity = 100 * 1024 * MIB;
    FsStats {
        time,
        available_bytes: Some(capacity - used.min(capacity)),
        capacity_bytes: Some(capacity),
        used_bytes: Some(used),
        inodes_free: None,
        inodes: None,
        inodes_used: Some(used / 4096),
    }
}

fn network(seed: u64, since: Timestamp, time: Timestamp) -> NetworkStats {
    let default = InterfaceStats {
        name: "eth0".to_owned(),
        rx_bytes: Some(grown(seed % 10_000, since, time)),
        rx_errors: Some(0),
        tx_bytes: Some(grown(seed / 3 % 10_000, since, time)),
        tx_errors: Some(0),
    };
    NetworkStats { time, interfaces: vec![default.clone()], default }
}
