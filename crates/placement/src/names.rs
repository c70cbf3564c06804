//! Labels, annotations and other names that placement reads and writes.

/// The prefix of our labels and annotations. Virtual nodes have labels with this prefix.
pub const PREFIX: &str = "multicluster.virtual-kubelet.io/";
/// Label of pods that want to run on virtual nodes, as in tensile-kube. Its value is `true`.
pub const VIRTUAL_POD: &str = "virtual-pod";
/// Label of namespaces whose pods want to run on virtual nodes. Its value is `true`.
pub const OFFLOAD: &str = "multicluster.virtual-kubelet.io/offload";
/// Label of pods that come from another cluster.
pub const ORIGIN: &str = "multicluster.virtual-kubelet.io/origin";
/// Annotation of pods: the label selector for lower nodes.
pub const LOWER_NODES: &str = "multicluster.virtual-kubelet.io/lower-nodes";
/// Annotation of pods: scheduling fields for the lower pod, as JSON.
pub const LOWER: &str = "multicluster.virtual-kubelet.io/lower";
/// The same annotation in tensile-kube.
pub const CLUSTER_SELECTOR: &str = "clusterSelector";
/// Annotation of pods: the topology keys over which the lower pods must be spread, `KEY` or `KEY:MINDOMAINS`, separated by commas.
pub const LOWER_SPREAD: &str = "multicluster.virtual-kubelet.io/lower-spread";
/// Annotation of pods: tolerations of lost nodes are for the virtual node only. Its value is `true`.
pub const TOLERATES_LOST: &str = "multicluster.virtual-kubelet.io/tolerates-lost";
/// Annotation of pods: what conversion left as it was, and why.
pub const NOT_CONVERTED: &str = "multicluster.virtual-kubelet.io/not-converted";
/// Topology key that stands for [`HOSTNAME`] in the lower cluster. No node has this label.
pub const MACHINE: &str = "multicluster.virtual-kubelet.io/machine";
/// Condition of pods: whether placement has found a node for the pod.
pub const PLACED: &str = vk_provider::placement::PLACED_CONDITION;
/// The reason of [`PLACED`] and [`SCHEDULED`] when a trial begins.
pub const ON_TRIAL: &str = vk_provider::placement::ON_TRIAL_REASON;
/// Condition of pods: what the lower scheduler decided. The provider `cluster` reports it.
pub const SCHEDULED: &str = vk_provider::placement::SCHEDULED_CONDITION;
/// Annotation of pods whose node selector on the host name was added by placement. Its value is `true`.
pub const PINNED: &str = vk_provider::placement::PINNED_ANNOTATION;
/// Annotation of pods: `false` if the descheduler leaves them alone, `true` if a pod may be evicted whose controller is not known to create
/// another one.
pub const DESCHEDULE: &str = "multicluster.virtual-kubelet.io/deschedule";
/// Label of pods that go to one node together or not at all. Its value is the name of their group.
pub const GROUP: &str = "multicluster.virtual-kubelet.io/group";
/// Annotation of pods of a group: how many pods it has.
pub const GROUP_SIZE: &str = "multicluster.virtual-kubelet.io/group-size";
/// Annotation of pods in the memory of placement only: why they are too large to be placed.
pub(crate) const TOO_LARGE: &str = "multicluster.virtual-kubelet.io/too-large";
/// Scheduling gate of pods that wait for a place.
pub const GATE: &str = "multicluster.virtual-kubelet.io/placement";

/// The Lease of the processes that serve the extender or the webhook. Their leader issues the certificates. It is not the Lease of the processes that
/// remove gates and evict pods, because not every process does both.
pub const SERVING_LEASE: &str = "virtual-kubelet-placement-serving";
/// Annotation of both Leases: the settings of the process that leads, as JSON.
pub const LEADER_SETTINGS: &str = "virtual-kubelet.io/placement-settings";
/// Annotation of [`SERVING_LEASE`]: when a scheduler has called an extender, to the hour.
pub const EXTENDER_CALLED: &str = "virtual-kubelet.io/extender-called";

/// The label with the name of a node.
pub const HOSTNAME: &str = vk_provider::node_selector::HOSTNAME;
/// The taint of virtual nodes.
pub const TAINT: &str = "virtual-kubelet.io/provider";
/// Taints of lost nodes, which the API server tolerates for every pod for a limited time.
pub const LOST_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// For how many seconds.
pub const DEFAULT_TOLERATION_SECONDS: i64 = 300;
/// Its pods are never converted.
pub const KUBE_SYSTEM: &str = "kube-system";
