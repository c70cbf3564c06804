//! What pods use.

use jiff::Timestamp;
use vk_provider::PodRef;

/// What a pod uses.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUsage {
    /// The pod, as its labels say.
    pub pod: PodRef,
    /// Since when its sandbox runs.
    pub started: Timestamp,
    /// Its containers.
    pub containers: Vec<ContainerUsage>,
    /// The pod as a whole, where the runtime measures it.
    pub cpu: Option<CpuUsage>,
    /// The same of memory.
    pub memory: Option<MemoryUsage>,
    /// Its network interfaces, the pod's own first, without the loop-back.
    pub interfaces: Vec<InterfaceUsage>,
}

/// What a container uses.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerUsage {
    /// Its name in the pod.
    pub name: String,
    /// Which one of this name.
    pub attempt: u32,
    /// Processor.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// What it has written into its own layer.
    pub writable_layer: Option<FsUsage>,
}

/// Processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuUsage {
    /// When it was measured.
    pub time: Timestamp,
    /// Nanoseconds in all.
    pub total_nanos: u64,
    /// Billionths of a core at the moment, where the runtime tells.
    pub nano_cores: Option<u64>,
}

/// Memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// What cannot be taken back.
    pub working_set: u64,
    /// What is left under the limit.
    pub available: Option<u64>,
    /// With caches.
    pub usage: Option<u64>,
    /// Anonymous.
    pub rss: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Page faults that needed the disk.
    pub major_page_faults: Option<u64>,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Where it is mounted.
    pub mount_point: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes in use, where the runtime tells.
    pub used_inodes: Option<u64>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceUsage {
    /// Its name in the pod.
    pub name: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Errors while receiving.
    pub receive_errors: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Errors while sending.
    pub send_errors: u64,
}
