//! Labels, annotations and names of lower objects.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The prefix of our labels and annotations.
pub const PREFIX: &str = "multicluster.virtual-kubelet.io/";
/// Label of every lower object: the id of its upper cluster.
pub const ORIGIN: &str = "multicluster.virtual-kubelet.io/origin";
/// Label of lower pods: the virtual node.
pub const NODE: &str = "multicluster.virtual-kubelet.io/node";
/// Label of lower pods: the UID of the upper pod.
pub const ORIGIN_UID: &str = "multicluster.virtual-kubelet.io/origin-uid";
/// Annotation of lower objects: the namespace of the upper object.
pub const ORIGIN_NAMESPACE: &str = "multicluster.virtual-kubelet.io/origin-namespace";
/// Annotation of lower objects: the name of the upper object.
pub const ORIGIN_NAME: &str = "multicluster.virtual-kubelet.io/origin-name";
/// Annotation of lower pods: the hash of the translated pod, see [`translate::Translated`](crate::translate::Translated).
pub const INPUT: &str = "multicluster.virtual-kubelet.io/input";
/// Annotation of lower pods: the values last written from the upper pod, so that changes by others can be told from them.
pub const APPLIED: &str = "multicluster.virtual-kubelet.io/applied";
/// Annotation of owner ConfigMaps: since when their virtual node is removing the namespace.
pub const RETIRING: &str = "multicluster.virtual-kubelet.io/retiring";
/// Annotation of recreated lower pods: the number of pods before this one.
pub const REPLACED: &str = "multicluster.virtual-kubelet.io/replaced";
/// Label of lower pods, as set by tensile-kube.
pub const VIRTUAL_POD: &str = "virtual-pod";
/// Annotation of upper pods: scheduling fields for the lower pod, as JSON.
pub const LOWER: &str = "multicluster.virtual-kubelet.io/lower";
/// Annotation of upper pods: a label selector for lower nodes, in addition to [`LOWER`].
pub const LOWER_NODES: &str = "multicluster.virtual-kubelet.io/lower-nodes";
/// Annotation of upper pods: topology keys of spread constraints that are hard in the lower cluster, `KEY` or `KEY:MINDOMAINS`.
pub const LOWER_SPREAD: &str = "multicluster.virtual-kubelet.io/lower-spread";
/// Annotation of upper pods: tolerations of lost nodes without a limit are for the virtual node.
pub const TOLERATES_LOST: &str = "multicluster.virtual-kubelet.io/tolerates-lost";
/// Topology key of upper pods that stands for the host name of a lower node.
pub const MACHINE: &str = "multicluster.virtual-kubelet.io/machine";
/// The same annotation as [`LOWER`] in tensile-kube.
pub const CLUSTER_SELECTOR: &str = "clusterSelector";
/// Annotation of upper pods: the API server that the service account belongs to.
pub const API_ACCESS: &str = "multicluster.virtual-kubelet.io/api-access";
/// Annotation of upper objects that must not be copied.
pub const SKIP: &str = "multicluster.virtual-kubelet.io/skip";
/// Label of the virtual node: the lower cluster.
pub const CLUSTER: &str = "multicluster.virtual-kubelet.io/cluster";
/// The same label in tensile-kube.
pub const CLUSTER_ID: &str = "clusterID";
/// Annotation of the virtual node: the lower cluster is abandoned.
pub const ABANDON: &str = "multicluster.virtual-kubelet.io/abandon";
/// Annotation of the virtual node: the number of lower nodes behind it.
pub const NODES: &str = "multicluster.virtual-kubelet.io/nodes";
/// Annotation of the virtual node: the largest free amounts on a single lower node.
pub const LARGEST_FREE: &str = "multicluster.virtual-kubelet.io/largest-free";
/// Condition of upper pods: the decision of the lower scheduler.
pub const SCHEDULED: &str = "multicluster.virtual-kubelet.io/Scheduled";
/// Condition of the virtual node: whether the lower API server answers.
pub const REACHABLE: &str = "multicluster.virtual-kubelet.io/LowerClusterReachable";

/// The maximum length of namespace names and label values.
const MAX_LABEL_LENGTH: usize = 63;

/// The owner of lower objects. Nobody else touches them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerId {
    /// The id of the upper cluster.
    pub origin: String,
    /// The name of the virtual node.
    pub node: String,
}

/// Maps upper namespaces to lower ones. The mapping is injective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMapping {
    /// The same name.
    #[default]
    Same,
    /// The same name with a suffix.
    Suffix(String),
    /// The names given here. Other namespaces are not offloaded.
    Map(BTreeMap<String, String>),
}

// === impl OwnerId ===

impl OwnerId {
    /// The value of the label [`NODE`]. It is shortened, because node names may be longer than label values.
    pub fn node_label(&self) -> String {
        shortened(&self.node, MAX_LABEL_LENGTH)
    }

    /// The service account of lower pods that have no other: without rights, and one for each upper cluster.
    pub fn account_name(&self) -> String {
        format!("vk-pods-{}", &sha256_hex(self.origin.as_bytes())[..16])
    }

    /// Whether a lower object belongs to this upper cluster.
    pub fn is_origin_of(&self, object: &ObjectMeta) -> bool {
        label(object, ORIGIN) == Some(self.origin.as_str())
    }

    /// Whether a lower pod belongs to this virtual node of this upper cluster.
    pub fn owns(&self, pod: &ObjectMeta) -> bool {
        self.is_origin_of(pod) && label(pod, NODE) == Some(self.node_label().as_str())
    }

    /// The label selector for the lower pods of this virtual node.
    pub fn selector(&self) -> String {
        format!("{ORIGIN}={},{NODE}={}", self.origin, self.node_label())
    }
}

// === impl NamespaceMapping ===

impl NamespaceMapping {
    /// The lower namespace of an upper one; `None` if it is not mapped.
    pub fn to_lower(&self, upper: &str) -> Option<String> {
        match self {
            Self::Same => Some(upper.to_owned()),
            Self::Suffix(suffix) => Some(shortened(&format!("{upper}{suffix}"), MAX_LABEL_LENGTH)),
            Self::Map(map) => map.get(upper).cloned(),
        }
    }

    /// The lower namespaces that can contain our objects; `None` means all namespaces.
    pub(crate) fn scopes(&self) -> Vec<Option<String>> {
        match self {
            Self::Map(map) => map.values().cloned().map(Some).collect(),
            Self::Same | Self::Suffix(_) => vec![None],
        }
    }
}

/// A label of an object.
pub fn label<'a>(object: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    object.labels.as_ref()?.get(key).map(String::as_str)
}

/// An annotation of an object.
pub fn annotation<'a>(object: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    object.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Shortens a name that is too long, with a hash to keep it unique.
fn shortened(name: &str, max_length: usize) -> String {
    if name.len() <= max_length {
        return name.to_owned();
    }
    let digest = sha256_hex(name.as_bytes());
    let cut: String = name.chars().take(max_length - 9).collect();
    format!("{}-{}", cut.trim_end_matches(['-', '.']), &digest[..8])
}

/// The SHA-256 hash in hexadecimal digits.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    digest(&SHA256, bytes).as_ref().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(labels: &[(&str, &str)]) -> ObjectMeta {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ObjectMeta { labels: Some(labels.collect()), ..ObjectMeta::default() }
    }

    #[test]
    fn ownership_depends_on_cluster_and_node() {
        let ours = OwnerId { origin: "o".to_owned(), node: "n".to_owned() };
        assert!(ours.owns(&object(&[(ORIGIN, "o"), (NODE, "n")])));
        assert!(!ours.owns(&object(&[(ORIGIN, "other"), (NODE, "n")])), "another upper cluster");
        assert!(!ours.owns(&object(&[(ORIGIN, "o"), (NODE, "other")])), "another virtual node");
        assert!(!ours.owns(&object(&[("virtual-pod", "true")])) && !ours.owns(&ObjectMeta::default()));
    }

    #[test]
    fn shortened_namespaces_stay_unique() {
        let suffix = NamespaceMapping::Suffix("-upper".to_owned());
        assert_eq!(suffix.to_lower("web").as_deref(), Some("web-upper"));
        let long = |last: char| format!("{}{last}", "n".repeat(60));
        let (a, b) = (suffix.to_lower(&long('a')).unwrap(), suffix.to_lower(&long('b')).unwrap());
        assert!(a != b && a.len() <= 63 && b.len() <= 63, "{a} {b}");
        let map = NamespaceMapping::Map([("web".to_owned(), "shop".to_owned())].into());
        assert_eq!((map.to_lower("web").as_deref(), map.to_lower("db")), (Some("shop"), None));
    }

    #[test]
    fn a_long_node_name_has_a_valid_label() {
        let owner = OwnerId { origin: "o".to_owned(), node: format!("{}.example.com", "n".repeat(80)) };
        assert!(owner.node_label().len() <= 63);
        assert!(owner.owns(&object(&[(ORIGIN, "o"), (NODE, &owner.node_label())])));
    }
}
