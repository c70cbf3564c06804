//! What the service answers. The names are those of the vendor's models.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::tolerant::{Decimal, Flag, List, Number, Object, Text};

/// The answer to `CreateContainerGroup`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Created {
    pub(crate) container_group_id: Text,
}

/// The answer to `DescribeContainerGroups`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct GroupList {
    pub(crate) container_groups: List<ContainerGroup>,
    pub(crate) next_token: Text,
}

/// A group.
#[expect(clippy::struct_field_names, reason = "the names of the vendor's model")]
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct ContainerGroup {
    pub(crate) container_group_id: Text,
    pub(crate) container_group_name: Text,
    pub(crate) status: Text,
    pub(crate) cpu: Decimal,
    pub(crate) memory: Decimal,
    pub(crate) instance_type: Text,
    pub(crate) spot_strategy: Text,
    pub(crate) zone_id: Text,
    pub(crate) intranet_ip: Text,
    pub(crate) internet_ip: Text,
    pub(crate) ipv6_address: Text,
    pub(crate) creation_time: Text,
    pub(crate) succeeded_time: Text,
    pub(crate) failed_time: Text,
    pub(crate) expired_time: Text,
    pub(crate) tags: List<Tag>,
    pub(crate) containers: List<GroupContainer>,
    pub(crate) init_containers: List<GroupContainer>,
    pub(crate) events: List<GroupEvent>,
}

/// A tag of a group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Tag {
    pub(crate) key: Text,
    pub(crate) value: Text,
}

/// A container of a group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct GroupContainer {
    pub(crate) name: Text,
    pub(crate) image: Text,
    pub(crate) ready: Flag,
    pub(crate) restart_count: Number,
    pub(crate) current_state: Object<ContainerState>,
    pub(crate) previous_state: Object<ContainerState>,
}

/// The state of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct ContainerState {
    pub(crate) state: Text,
    pub(crate) reason: Text,
    pub(crate) detail_status: Text,
    pub(crate) message: Text,
    pub(crate) exit_code: Number,
    pub(crate) signal: Number,
    pub(crate) start_time: Text,
    pub(crate) finish_time: Text,
}

/// An event of a group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct GroupEvent {
    #[serde(rename = "Type")]
    pub(crate) kind: Text,
    pub(crate) reason: Text,
    pub(crate) message: Text,
    pub(crate) first_timestamp: Text,
    pub(crate) last_timestamp: Text,
}

/// The answer to `DescribeContainerGroupStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct StatusList {
    pub(crate) data: List<StatusEntry>,
    pub(crate) next_token: Text,
}

/// A group in the status feed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct StatusEntry {
    pub(crate) container_group_id: Text,
    pub(crate) name: Text,
    pub(crate) status: Text,
    pub(crate) pod_status: Object<PodStatus>,
}

/// The status of a pod, as the service sees it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct PodStatus {
    pub(crate) phase: Text,
    pub(crate) pod_ip: Text,
    pub(crate) pod_ips: List<PodAddress>,
    pub(crate) start_time: Text,
    pub(crate) container_statuses: List<PodContainer>,
}

/// An address of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct PodAddress {
    pub(crate) ip: Text,
}

/// A container in the status feed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct PodContainer {
    pub(crate) name: Text,
    pub(crate) image: Text,
    #[serde(rename = "ImageID")]
    pub(crate) image_id: Text,
    pub(crate) ready: Flag,
    pub(crate) started: Flag,
    pub(crate) restart_count: Number,
    pub(crate) state: Object<StatusState>,
    pub(crate) last_state: Object<StatusState>,
}

/// The state of a container in the status feed: one of these is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct StatusState {
    pub(crate) running: Object<StatusRunning>,
    pub(crate) terminated: Object<StatusTermination>,
    pub(crate) waiting: Object<StatusWaiting>,
}

/// A container that runs. The vendor's own model misspells the key of the time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StatusRunning {
    #[serde(rename = "StartedAt", alias = "startedAt", alias = "StartedAtstartedAt")]
    pub(crate) started_at: Text,
}

/// A container that has ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct StatusTermination {
    pub(crate) exit_code: Number,
    pub(crate) signal: Number,
    pub(crate) reason: Text,
    pub(crate) message: Text,
    pub(crate) started_at: Text,
    pub(crate) finished_at: Text,
}

/// A container that waits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct StatusWaiting {
    pub(crate) reason: Text,
    pub(crate) message: Text,
}

/// The answer to `DescribeContainerGroupEvents`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct EventList {
    pub(crate) data: List<EventEntry>,
}

/// The events of a group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct EventEntry {
    pub(crate) container_group_id: Text,
    pub(crate) name: Text,
    pub(crate) events: List<GroupEvent>,
}

/// The answer to `DescribeContainerLog`.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct LogContent {
    pub(crate) content: Text,
}

/// The answer to `ExecContainerCommand`. The URL grants access.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct CommandStarted {
    pub(crate) web_socket_uri: Text,
}

/// The answer to `DescribeMultiContainerGroupMetric`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct MetricList {
    pub(crate) monitor_datas: List<GroupMetrics>,
}

/// The usage of a group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct GroupMetrics {
    pub(crate) container_group_id: Text,
    pub(crate) records: List<MetricRecord>,
}

/// The usage of a group at a time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct MetricRecord {
    pub(crate) timestamp: Text,
    #[serde(rename = "CPU")]
    pub(crate) cpu: Object<CpuMetric>,
    pub(crate) memory: Object<MemoryMetric>,
    pub(crate) network: Object<NetworkMetric>,
    pub(crate) containers: List<ContainerMetric>,
}

/// The usage of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct ContainerMetric {
    pub(crate) name: Text,
    #[serde(rename = "CPU")]
    pub(crate) cpu: Object<CpuMetric>,
    pub(crate) memory: Object<MemoryMetric>,
}

/// CPU usage.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct CpuMetric {
    pub(crate) usage_nano_cores: Number,
    pub(crate) usage_core_nano_seconds: Number,
}

/// Memory usage.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct MemoryMetric {
    pub(crate) available_bytes: Number,
    pub(crate) usage_bytes: Number,
    pub(crate) working_set: Number,
    pub(crate) rss: Number,
}

/// Network usage.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct NetworkMetric {
    pub(crate) interfaces: List<InterfaceMetric>,
}

/// The usage of a network interface.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct InterfaceMetric {
    pub(crate) name: Text,
    pub(crate) rx_bytes: Number,
    pub(crate) rx_errors: Number,
    pub(crate) tx_bytes: Number,
    pub(crate) tx_errors: Number,
}

/// The answer to `DescribeContainerGroupPrice`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct GroupPrice {
    pub(crate) price_info: Object<PriceInfo>,
}

/// Prices.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct PriceInfo {
    pub(crate) price: Object<Price>,
}

/// A price.
#[expect(clippy::struct_field_names, reason = "the names of the vendor's model")]
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Price {
    pub(crate) currency: Text,
    pub(crate) trade_price: Decimal,
    pub(crate) original_price: Decimal,
}

/// The answer to `ListUsage`: numbers by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct UsageList {
    pub(crate) attributes: Object<BTreeMap<String, Decimal>>,
}

/// The answer to `DescribeRegions`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Regions {
    pub(crate) regions: List<Region>,
}

/// A region.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Region {
    pub(crate) region_id: Text,
}
