//! Usage statistics: from the runtime for pods, from the host for the node.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use vk_provider::{
    Result,
    ability::{
        ContainerStats, CpuStats, FsStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats,
        PodReference, PodStats, Summary,
    },
};

use super::{context::EngineContext, pod_handle::PodView};
use crate::backend::{CpuUsage, FsUsage, InterfaceUsage, MemoryUsage, PodUsage};

/// Clock ticks per second in `/proc/stat`.
const TICKS: u64 = 100;
const NANOS: u64 = 1_000_000_000;

/// Collects usage statistics.
#[derive(Debug)]
pub(super) struct StatsCollector {
    started: Timestamp,
    /// The last sample by object: the current usage is computed from two of them.
    samples: Mutex<HashMap<String, Sample>>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    time: Timestamp,
    total: u64,
    rate: Option<u64>,
}

// === impl StatsCollector ===

impl StatsCollector {
    pub(super) fn new(started: Timestamp) -> Self {
        Self { started, samples: Mutex::default() }
    }

    pub(super) async fn summary(&self, context: &Arc<EngineContext>) -> Result<Summary> {
        let usage = context.backend.usage(&context.node_labels()).await?;
        let now = context.clock.now();
        let mut seen = Vec::new();
        let pods = usage.into_iter().map(|pod| self.pod(pod, context, &mut seen, now)).collect();
        let node = self.node(context, &mut seen, now);
        self.samples.lock().retain(|key, _| seen.contains(key));
        Ok(Summary { node, pods })
    }

    fn pod(
        &self,
        pod: PodUsage,
        context: &EngineContext,
        seen: &mut Vec<String>,
        now: Timestamp,
    ) -> PodStats {
        let view = context.pod(&pod.pod.uid).map(|handle| handle.view.borrow().clone()).unwrap_or_default();
        let uid = &pod.pod.uid;
        let containers: Vec<ContainerStats> = pod
            .containers
            .into_iter()
            .map(|container| {
                let key = format!("{uid}/{}/{}", container.name, container.attempt);
                ContainerStats {
                    start_time: started(&view, &container.name).unwrap_or(pod.started),
                    cpu: container.cpu.map(|cpu| self.cpu(key, cpu, seen)),
                    memory: container.memory.map(|memory| memory_stats(memory, now)),
                    rootfs: container.writable_layer.map(|layer| fs_stats(&layer, now)),
                    logs: None,
                    name: container.name,
                }
            })
            .collect();
        let cpu = pod.cpu.map(|cpu| self.cpu(uid.to_string(), cpu, seen)).or_else(|| sum_cpu(&containers));
        let memory =
            pod.memory.map(|memory| memory_stats(memory, now)).or_else(|| sum_memory(&containers, now));
        PodStats {
            pod_ref: PodReference {
                name: pod.pod.name.to_string(),
                namespace: pod.pod.namespace.to_string(),
                uid: uid.to_string(),
            },
            start_time: pod.started,
            containers,
            cpu,
            memory,
            network: network(&pod.interfaces, now),
            ephemeral_storage: None,
        }
    }

    /// CPU statistics. If the runtime does not report the current usage, it is computed from two samples.
    fn cpu(&self, key: String, usage: CpuUsage, seen: &mut Vec<String>) -> CpuStats {
        let reported = usage.nano_cores.filter(|rate| *rate > 0);
        let mut samples = self.samples.lock();
        let rate = reported.or_else(|| {
            let last = samples.get(&key)?;
            let elapsed = u64::try_from(usage.time.duration_since(last.time).as_nanos()).ok()?;
            // Two samples of the same time give no rate.
            if elapsed == 0 {
                return last.rate;
            }
            let used = usage.total_nanos.checked_sub(last.total)?;
            u64::try_from(u128::from(used) * u128::from(NANOS) / u128::from(elapsed)).ok()
        });
        samples.insert(key.clone(), Sample { time: usage.time, total: usage.total_nanos, rate });
        drop(samples);
        seen.push(key);
        CpuStats {
            time: usage.time,
            usage_nano_cores: rate,
            usage_core_nano_seconds: Some(usage.total_nanos),
        }
    }

    fn node(&self, context: &EngineContext, seen: &mut Vec<String>, now: Timestamp) -> NodeStats {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let cpu = read("/proc/stat").and_then(|text| busy_nanos(&text)).map(|total_nanos| {
            let usage = CpuUsage { time: now, total_nanos, nano_cores: None };
            self.cpu("node".to_owned(), usage, seen)
        });
        let memory = read("/proc/meminfo").and_then(|text| meminfo(&text, now));
        let interfaces = read("/proc/net/dev").map(|text| interfaces(&text)).unwrap_or_default();
        NodeStats {
            node_name: context.settings.node.clone(),
            start_time: self.started,
            cpu,
            memory,
            network: network(&interfaces, now),
            fs: file_system(&context.settings.root, now),
        }
    }
}

fn started(view: &PodView, name: &str) -> Option<Timestamp> {
    view.snapshot.newest(name)?.started
}

fn memory_stats(memory: MemoryUsage, time: Timestamp) -> MemoryStats {
    MemoryStats {
        time,
        available_bytes: memory.available,
        usage_bytes: memory.usage,
        working_set_bytes: Some(memory.working_set),
        rss_bytes: memory.rss,
        page_faults: memory.page_faults,
        major_page_faults: memory.major_page_faults,
    }
}

fn sum_cpu(containers: &[ContainerStats]) -> Option<CpuStats> {
    let all = containers.iter().filter_map(|container| container.cpu.as_ref());
    all.cloned().reduce(|one, other| CpuStats {
        time: one.time.max(other.time),
        usage_nano_cores: one.usage_nano_cores.zip(other.usage_nano_cores).map(|(one, other)| one + other),
        usage_core_nano_seconds: one
            .usage_core_nano_seconds
            .zip(other.usage_core_nano_seconds)
            .map(|(one, other)| one + other),
    })
}

fn sum_memory(containers: &[ContainerStats], time: Timestamp) -> Option<MemoryStats> {
    let all = containers.iter().filter_map(|container| container.memory.as_ref()?.working_set_bytes);
    let sum = all.reduce(|one, other| one + other)?;
    Some(memory_stats(MemoryUsage { working_set: sum, ..MemoryUsage::default() }, time))
}

fn fs_stats(usage: &FsUsage, time: Timestamp) -> FsStats {
    FsStats {
        time,
        available_bytes: None,
        capacity_bytes: None,
        used_bytes: Some(usage.used_bytes),
        inodes_free: None,
        inodes: None,
        inodes_used: usage.used_inodes,
    }
}

fn network(interfaces: &[InterfaceUsage], time: Timestamp) -> Option<NetworkStats> {
    let stats = |usage: &InterfaceUsage| InterfaceStats {
        name: usage.name.clone(),
        rx_bytes: Some(usage.received_bytes),
        rx_errors: Some(usage.receive_errors),
        tx_bytes: Some(usage.sent_bytes),
        tx_errors: Some(usage.send_errors),
    };
    let default = stats(interfaces.first()?);
    Some(NetworkStats { time, default, interfaces: interfaces.iter().map(stats).collect() })
}

/// Busy CPU time of the host in nanoseconds.
fn busy_nanos(stat: &str) -> Option<u64> {
    let first = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = first.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let busy: u64 =
        ticks.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, one)| one).sum();
    (ticks.len() >= 4).then_some(busy.saturating_mul(NANOS / TICKS))
}

fn meminfo(text: &str, time: Timestamp) -> Option<MemoryStats> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kilo| kilo * 1024)
    };
    let (total, free, available) = (value("MemTotal")?, value("MemFree")?, value("MemAvailable")?);
    let usage = MemoryUsage {
        working_set: total.saturating_sub(available),
        available: Some(available),
        usage: Some(total.saturating_sub(free)),
        rss: value("AnonPages"),
        ..MemoryUsage::default()
    };
    Some(memory_stats(usage, time))
}

/// Network interfaces of the host without the loopback.
fn interfaces(text: &str) -> Vec<InterfaceUsage> {
    let device = |line: &str| {
        let (name, figures) = line.split_once(':')?;
        let figures: Vec<u64> = figures.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        Some(InterfaceUsage {
            name: name.trim().to_owned(),
            received_bytes: *figures.first()?,
            receive_errors: *figures.get(2)?,
            sent_bytes: *figures.get(8)?,
            send_errors: *figures.get(10)?,
        })
    };
    text.lines().filter_map(device).filter(|usage| usage.name != "lo").collect()
}

fn file_system(path: &std::path::Path, time: Timestamp) -> Option<FsStats> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some(FsStats {
        time,
        available_bytes: Some(bytes(stat.f_bavail)),
        capacity_bytes: Some(bytes(stat.f_blocks)),
        used_bytes: Some(bytes(stat.f_blocks.saturating_sub(stat.f_bfree))),
        inodes_free: Some(stat.f_ffree),
        inodes: Some(stat.f_files),
        inodes_used: Some(stat.f_files.saturating_sub(stat.f_ffree)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_usage_is_computed_from_two_samples() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let collector = StatsCollector::new(start);
        let sample = |seconds: i64, total_nanos| CpuUsage {
            time: start + jiff::SignedDuration::from_secs(seconds),
            total_nanos,
            nano_cores: None,
        };
        let mut seen = Vec::new();
        let mut rate = |usage| collector.cpu("pod/app/0".to_owned(), usage, &mut seen).usage_nano_cores;
        assert_eq!(rate(sample(0, NANOS)), None);
        assert_eq!(rate(sample(10, 6 * NANOS)), Some(NANOS / 2));
        assert_eq!(rate(sample(10, 6 * NANOS)), Some(NANOS / 2), "the same time again");
        assert_eq!(rate(sample(20, 0)), None, "the counter was reset");
    }

    #[test]
    fn the_files_of_the_kernel_are_parsed() {
        assert_eq!(busy_nanos("cpu  100 0 50 1000 7 0 0 0 0 0\ncpu0 1 1 1 1\n"), Some(150 * NANOS / TICKS));
        let time: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n";
        let memory = meminfo(text, time).unwrap();
        assert_eq!(memory.working_set_bytes, Some(600 * 1024));
        assert_eq!(memory.usage_bytes, Some(900 * 1024));
        let found = interfaces(
            "Inter-| Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11\n  eth0: 10 1 2 0 0 0 0 0 20 1 3 0\n",
        );
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].received_bytes, found[0].sent_bytes, found[0].send_errors), (10, 20, 3));
    }
}
