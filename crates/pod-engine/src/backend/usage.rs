//! Resource usage of pods and containers.

use jiff::Timestamp;
use vk_provider::PodRef;

/// Usage of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUsage {
    /// The pod, from its labels.
    pub pod: PodRef,
    /// Start time of its sandbox.
    pub started: Timestamp,
    /// Its containers.
    pub containers: Vec<ContainerUsage>,
    /// CPU usage of the whole pod, if the runtime reports it.
    pub cpu: Option<CpuUsage>,
    /// Memory usage of the whole pod, if the runtime reports it.
    pub memory: Option<MemoryUsage>,
    /// Its network interfaces, the default one first, without the loopback.
    pub interfaces: Vec<InterfaceUsage>,
}

/// Usage of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerUsage {
    /// Its name in the pod.
    pub name: String,
    /// Its attempt number.
    pub attempt: u32,
    /// CPU usage.
    pub cpu: Option<CpuUsage>,
    /// Memory usage.
    pub memory: Option<MemoryUsage>,
    /// Usage of its writable layer.
    pub writable_layer: Option<FsUsage>,
}

/// CPU usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuUsage {
    /// Time of the measurement.
    pub time: Timestamp,
    /// Total CPU time in nanoseconds.
    pub total_nanos: u64,
    /// Current usage in billionths of a core, if the runtime reports it.
    pub nano_cores: Option<u64>,
}

/// Memory usage in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Memory that cannot be reclaimed.
    pub working_set: u64,
    /// Memory left below the limit.
    pub available: Option<u64>,
    /// Total memory, caches included.
    pub usage: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Major page faults.
    pub major_page_faults: Option<u64>,
}

/// Usage of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Where it is mounted.
    pub mount_point: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes in use, if the runtime reports them.
    pub used_inodes: Option<u64>,
}

/// Traffic of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceUsage {
    /// Its name in the pod.
    pub name: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Receive errors.
    pub receive_errors: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Send errors.
    pub send_errors: u64,
}
