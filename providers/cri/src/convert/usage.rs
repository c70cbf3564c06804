//! Resource usage of pods.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use vk_pod_engine::backend::{ContainerUsage, CpuUsage, FsUsage, InterfaceUsage, MemoryUsage, PodUsage};
use vk_provider::PodRef;

use super::{pod_from_labels, pod_of, time};
use crate::proto;

/// The loopback interface, which CRI-O reports as the default interface.
const LOOPBACK: &str = "lo";

/// Usage of pods, as reported by the runtime.
pub(crate) fn pod_stats(
    stats: Vec<proto::PodSandboxStats>,
    sandboxes: &[proto::PodSandbox],
) -> Vec<PodUsage> {
    let started: HashMap<&str, Timestamp> =
        sandboxes.iter().map(|sandbox| (sandbox.id.as_str(), time(sandbox.created_at))).collect();
    let mut pods = Vec::with_capacity(stats.len());
    for stats in stats {
        let Some(attributes) = stats.attributes else { continue };
        let Some(pod) = pod_of(&attributes.labels, attributes.metadata.as_ref()) else { continue };
        // A pod that was created between the two lists has no start time yet: skip it this time.
        let Some(started) = started.get(attributes.id.as_str()).copied() else { continue };
        let linux = stats.linux.unwrap_or_default();
        pods.push(PodUsage {
            pod,
            started,
            containers: linux.containers.into_iter().filter_map(container).collect(),
            cpu: linux.cpu.and_then(cpu),
            memory: linux.memory.and_then(memory),
            interfaces: linux.network.map(interfaces).unwrap_or_default(),
        });
    }
    pods
}

/// Usage of containers, for runtimes that do not report usage of pods.
pub(crate) fn container_stats(
    stats: Vec<proto::ContainerStats>,
    sandboxes: &[proto::PodSandbox],
) -> Vec<PodUsage> {
    let mut pods: BTreeMap<PodRef, PodUsage> = BTreeMap::new();
    for sandbox in sandboxes.iter().filter(|sandbox| sandbox.state() == proto::PodSandboxState::SandboxReady)
    {
        let Some(pod) = pod_of(&sandbox.labels, sandbox.metadata.as_ref()) else { continue };
        let usage = PodUsage {
            pod: pod.clone(),
            started: time(sandbox.created_at),
            containers: Vec::new(),
            cpu: None,
            memory: None,
            interfaces: Vec::new(),
        };
        pods.insert(pod, usage);
    }
    for stats in stats {
        let pod = stats.attributes.as_ref().and_then(|attributes| pod_from_labels(&attributes.labels));
        let Some(usage) = pod.and_then(|pod| pods.get_mut(&pod)) else { continue };
        usage.containers.extend(container(stats));
    }
    pods.into_values().collect()
}

fn container(stats: proto::ContainerStats) -> Option<ContainerUsage> {
    let metadata = stats.attributes?.metadata?;
    Some(ContainerUsage {
        name: metadata.name,
        attempt: metadata.attempt,
        cpu: stats.cpu.and_then(cpu),
        memory: stats.memory.and_then(memory),
        writable_layer: stats.writable_layer.map(fs),
    })
}

fn cpu(cpu: proto::CpuUsage) -> Option<CpuUsage> {
    Some(CpuUsage {
        time: time(cpu.timestamp),
        total_nanos: cpu.usage_core_nano_seconds?.value,
        nano_cores: cpu.usage_nano_cores.map(|cores| cores.value),
    })
}

fn memory(memory: proto::MemoryUsage) -> Option<MemoryUsage> {
    let value = |value: Option<proto::UInt64Value>| value.map(|value| value.value);
    Some(MemoryUsage {
        working_set: value(memory.working_set_bytes)?,
        // Some runtimes report zero for a container without a limit.
        available: value(memory.available_bytes).filter(|available| *available > 0),
        usage: value(memory.usage_bytes),
        rss: value(memory.rss_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
    })
}

pub(crate) fn fs(fs: proto::FilesystemUsage) -> FsUsage {
    FsUsage {
        mount_point: fs.fs_id.map(|id| id.mountpoint).unwrap_or_default(),
        used_bytes: fs.used_bytes.map_or(0, |bytes| bytes.value),
        used_inodes: fs.inodes_used.map(|inodes| inodes.value),
    }
}

fn interfaces(network: proto::NetworkUsage) -> Vec<InterfaceUsage> {
    let mut all: Vec<InterfaceUsage> = Vec::new();
    for interface in network.default_interface.into_iter().chain(network.interfaces) {
        if interface.name != LOOPBACK && all.iter().all(|known| known.name != interface.name) {
            let value = |value: Option<proto::UInt64Value>| value.map_or(0, |value| value.value);
            all.push(InterfaceUsage {
                received_bytes: value(interface.rx_bytes),
                receive_errors: value(interface.rx_errors),
                sent_bytes: value(interface.tx_bytes),
                send_errors: value(interface.tx_errors),
                name: interface.name,
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, received: u64) -> proto::NetworkInterfaceUsage {
        let rx_bytes = Some(proto::UInt64Value { value: received });
        proto::NetworkInterfaceUsage { name: name.into(), rx_bytes, ..Default::default() }
    }

    fn sandbox(id: &str, uid: &str, state: proto::PodSandboxState) -> proto::PodSandbox {
        let metadata = proto::PodSandboxMetadata {
            name: "p".into(),
            namespace: "n".into(),
            uid: uid.into(),
            attempt: 0,
        };
        proto::PodSandbox {
            id: id.into(),
            metadata: Some(metadata),
            state: state.into(),
            created_at: 5,
            ..Default::default()
        }
    }

    #[test]
    fn the_pods_own_interface_comes_first_whatever_the_runtime_calls_the_default() {
        let names = |default: &str, others: &[&str]| {
            let network = proto::NetworkUsage {
                default_interface: Some(interface(default, 1)),
                interfaces: others.iter().map(|name| interface(name, 2)).collect(),
                ..Default::default()
            };
            interfaces(network).into_iter().map(|known| known.name).collect::<Vec<_>>()
        };
        assert_eq!(names("lo", &["eth0", "lo"]), ["eth0"]);
        assert_eq!(names("eth0", &["eth0", "net1"]), ["eth0", "net1"]);
    }

    #[test]
    fn without_figures_of_pods_those_of_containers_are_put_together() {
        let labels = |uid: &str| {
            use vk_pod_engine::snapshot::label;
            [(label::POD_NAME, "p"), (label::POD_NAMESPACE, "n"), (label::POD_UID, uid)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        };
        let stats = |uid: &str, name: &str| proto::ContainerStats {
            attributes: Some(proto::ContainerAttributes {
                id: format!("{uid}-{name}"),
                metadata: Some(proto::ContainerMetadata { name: name.into(), attempt: 1 }),
                labels: labels(uid),
            }),
            ..Default::default()
        };
        let ready = proto::PodSandboxState::SandboxReady;
        let sandboxes =
            [sandbox("s1", "u1", ready), sandbox("s2", "u2", proto::PodSandboxState::SandboxNotready)];
        let pods = container_stats(vec![stats("u1", "a"), stats("u1", "b"), stats("u2", "c")], &sandboxes);
        assert_eq!(pods.len(), 1, "what has ended uses nothing");
        let names: Vec<&str> = pods[0].containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(pods[0].started, time(5));
    }
}
