//! Resource usage.

use jiff::Timestamp;
use vk_container_group::backend::{ContainerUsage, GroupRef, GroupStats};
use vk_provider::ability::{CpuStats, InterfaceStats, MemoryStats, NetworkStats};

use crate::api::{CpuMetric, MemoryMetric, MetricList, MetricRecord, NetworkMetric};

/// The newest figures of each group. A group without figures is left out.
pub(super) fn group_stats(groups: &[GroupRef], list: &MetricList) -> Vec<GroupStats> {
    let found = list.monitor_datas.iter().filter_map(|entry| {
        let id = entry.container_group_id.get()?;
        let group = groups.iter().find(|group| &*group.id == id)?;
        let records = entry.records.iter().filter_map(|record| Some((time(record)?, record)));
        let (time, record) = records.max_by_key(|(time, _)| *time)?;
        Some(of_record(group, time, record))
    });
    found.collect()
}

fn time(record: &MetricRecord) -> Option<Timestamp> {
    record.timestamp.get()?.parse().ok()
}

fn of_record(group: &GroupRef, time: Timestamp, record: &MetricRecord) -> GroupStats {
    let containers = record.containers.iter().filter_map(|one| {
        Some(ContainerUsage {
            name: one.name.owned()?,
            cpu: one.cpu.get().map(|cpu| of_cpu(cpu, time)),
            memory: one.memory.get().map(|memory| of_memory(memory, time)),
        })
    });
    GroupStats {
        group: group.clone(),
        containers: containers.collect(),
        cpu: record.cpu.get().map(|cpu| of_cpu(cpu, time)),
        memory: record.memory.get().map(|memory| of_memory(memory, time)),
        network: record.network.get().and_then(|network| of_network(network, time)),
    }
}

fn of_cpu(cpu: &CpuMetric, time: Timestamp) -> CpuStats {
    CpuStats {
        time,
        usage_nano_cores: cpu.usage_nano_cores.to(),
        usage_core_nano_seconds: cpu.usage_core_nano_seconds.to(),
    }
}

fn of_memory(memory: &MemoryMetric, time: Timestamp) -> MemoryStats {
    MemoryStats {
        time,
        available_bytes: memory.available_bytes.to(),
        usage_bytes: memory.usage_bytes.to(),
        working_set_bytes: memory.working_set.to(),
        rss_bytes: memory.rss.to(),
        page_faults: None,
        major_page_faults: None,
    }
}

fn of_network(network: &NetworkMetric, time: Timestamp) -> Option<NetworkStats> {
    let interfaces: Vec<InterfaceStats> = network
        .interfaces
        .iter()
        .filter_map(|one| {
            Some(InterfaceStats {
                name: one.name.owned()?,
                rx_bytes: one.rx_bytes.to(),
                rx_errors: one.rx_errors.to(),
                tx_bytes: one.tx_bytes.to(),
                tx_errors: one.tx_errors.to(),
            })
        })
        .collect();
    let default = interfaces.iter().find(|one| one.name == "eth0").or_else(|| interfaces.first())?.clone();
    Some(NetworkStats { time, default, interfaces })
}
