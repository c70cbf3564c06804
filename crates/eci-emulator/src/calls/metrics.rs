//! DescribeContainerGroupMetric and DescribeMultiContainerGroupMetric.

use serde_json::{Value, json};

use super::{Call, id, time};
use crate::{
    cloud::{Cloud, Container, ContainerState, Group, Usage},
    error::{ApiError, Result},
    limits,
};

/// What a simulated container uses: a twentieth of a CPU, and 16 MiB.
const SIMULATED: Usage =
    Usage { cpu_nanoseconds: 0, nano_cores: 50_000_000, memory_bytes: 16 << 20, measured: None };

/// The metrics of one group or of several.
pub(crate) fn metrics(cloud: &mut Cloud, call: &Call<'_>) -> Result<Value> {
    let request = call.request;
    if call.action == "DescribeContainerGroupMetric" {
        let (_, group) = cloud.find(id(request))?;
        let records: Vec<Value> = record(cloud, group, false).into_iter().collect();
        return Ok(json!({"ContainerGroupId": group.id, "Records": records}));
    }
    let ids = limits::ids(request)?.filter(|ids| !ids.is_empty());
    let ids = ids.ok_or_else(|| ApiError::missing("ContainerGroupIds"))?;
    if request["MetricType"].as_str().is_some_and(|kind| kind != "summary") {
        return Err(ApiError::invalid("MetricType", "The metric type must be summary."));
    }
    // Groups that do not exist are left out.
    let groups = ids.iter().filter_map(|id| cloud.find(id).ok().map(|(_, group)| group));
    let data: Vec<Value> = groups
        .map(|group| {
            let records: Vec<Value> = record(cloud, group, true).into_iter().collect();
            json!({"ContainerGroupId": group.id, "Records": records})
        })
        .collect();
    Ok(json!({"MonitorDatas": data}))
}

/// The newest record of a group that runs.
fn record(cloud: &Cloud, group: &Group, is_multi: bool) -> Option<Value> {
    let used: Vec<(&Container, Usage)> =
        group.containers.iter().filter_map(|container| Some((container, usage(cloud, container)?))).collect();
    if used.is_empty() {
        return None;
    }
    let sum = |of: fn(&Usage) -> u64| used.iter().map(|(_, usage)| of(usage)).sum::<u64>();
    let whole = Usage {
        cpu_nanoseconds: sum(|usage| usage.cpu_nanoseconds),
        nano_cores: sum(|usage| usage.nano_cores),
        memory_bytes: sum(|usage| usage.memory_bytes),
        measured: None,
    };
    let limit = group.size.memory * f64::from(1 << 30);
    let containers: Vec<Value> = used
        .iter()
        .map(|(container, usage)| {
            json!({
                "Name": container.name,
                "CPU": cpu(usage, container.spec["Cpu"].as_f64().unwrap_or(group.size.cpu)),
                "Memory": memory(usage, limit),
            })
        })
        .collect();
    // The vendor spells these keys in two ways.
    let (read, write) = if is_multi { ("ReadIo", "WriteIo") } else { ("ReadIO", "WriteIO") };
    let mut filesystem = json!({"FsName": "/dev/vda1", "Capacity": 30_u64 << 30, "Available": 29_u64 << 30, "Usage": 1_u64 << 30});
    if !is_multi {
        filesystem["Category"] = "rootfs".into();
    }
    Some(json!({
        "Timestamp": time(cloud.now()),
        "CPU": cpu(&whole, group.size.cpu),
        "Memory": memory(&whole, limit),
        "Containers": containers,
        "Network": {"Interfaces": [{
            "Name": "eth0",
            "RxBytes": 1024, "RxDrops": 0, "RxErrors": 0, "RxPackets": 8,
            "TxBytes": 1024, "TxDrops": 0, "TxErrors": 0, "TxPackets": 8,
        }]},
        "Disk": [{"Device": "vda", "ReadBytes": 4096, read: 1, "WriteBytes": 4096, write: 1}],
        "Filesystem": [filesystem],
    }))
}

fn usage(cloud: &Cloud, container: &Container) -> Option<Usage> {
    let ContainerState::Running { started } = container.state else { return None };
    if container.usage.measured.is_some() {
        return Some(container.usage);
    }
    let seconds = u64::try_from(cloud.now().duration_since(started).as_secs()).unwrap_or(0);
    Some(Usage { cpu_nanoseconds: seconds * SIMULATED.nano_cores, ..SIMULATED })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of CPUs is small")]
fn cpu(usage: &Usage, cpus: f64) -> Value {
    json!({
        "UsageNanoCores": usage.nano_cores,
        "UsageCoreNanoSeconds": usage.cpu_nanoseconds,
        "Load": 0,
        "Limit": (cpus * 1000.0) as u64,
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory fits")]
fn memory(usage: &Usage, limit: f64) -> Value {
    json!({
        "UsageBytes": usage.memory_bytes,
        "WorkingSet": usage.memory_bytes,
        "Rss": usage.memory_bytes,
        "Cache": 0,
        "AvailableBytes": (limit as u64).saturating_sub(usage.memory_bytes),
    })
}
