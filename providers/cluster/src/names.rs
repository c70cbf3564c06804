//! What is written on objects, and what they are called below.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// What our labels and annotations begin with.
pub const PREFIX: &str = "multicluster.virtual-kubelet.io/";
/// Label of every lower object: the upper cluster that it comes from.
pub const ORIGIN: &str = "multicluster.virtual-kubelet.io/origin";
/// Label of lower pods: the virtual node that has it.
pub const NODE: &str = "multicluster.virtual-kubelet.io/node";
/// Label of lower pods: the UID of the upper one.
pub const ORIGIN_UID: &str = "multicluster.virtual-kubelet.io/origin-uid";
/// Annotation of lower objects: the namespace of the upper one.
pub const ORIGIN_NAMESPACE: &str = "multicluster.virtual-kubelet.io/origin-namespace";
/// Annotation of lower objects: the name of the upper one.
pub const ORIGIN_NAME: &str = "multicluster.virtual-kubelet.io/origin-name";
/// Annotation of lower pods: of what they were made, see [`translate::Translated`](crate::translate::Translated).
pub const INPUT: &str = "multicluster.virtual-kubelet.io/input";
/// Annotation of lower pods: what of them is the upper pod's and may change, so that what others put there is told from it.
pub const APPLIED: &str = "multicluster.virtual-kubelet.io/applied";
/// Annotation of lower pods that were made again: how many there were before.
pub const REPLACED: &str = "multicluster.virtual-kubelet.io/replaced";
/// Label of lower pods, as tensile-kube sets it.
pub const VIRTUAL_POD: &str = "virtual-pod";
/// Annotation of upper pods: what holds below instead of what the upper scheduler was told, as JSON.
pub const LOWER: &str = "multicluster.virtual-kubelet.io/lower";
/// The same as tensile-kube calls it.
pub const CLUSTER_SELECTOR: &str = "clusterSelector";
/// Annotation of upper pods: which API server its service account is of.
pub const API_ACCESS: &str = "multicluster.virtual-kubelet.io/api-access";
/// Annotation of upper objects that are never copied.
pub const SKIP: &str = "multicluster.virtual-kubelet.io/skip";
/// Label of the virtual node: the lower cluster.
pub const CLUSTER: &str = "multicluster.virtual-kubelet.io/cluster";
/// The same as tensile-kube calls it.
pub const CLUSTER_ID: &str = "clusterID";
/// Annotation of the virtual node: the lower cluster is given up.
pub const ABANDON: &str = "multicluster.virtual-kubelet.io/abandon";
/// Annotation of the virtual node: how many lower nodes it stands for.
pub const NODES: &str = "multicluster.virtual-kubelet.io/nodes";
/// Annotation of the virtual node: the most that is free on one lower node.
pub const LARGEST_FREE: &str = "multicluster.virtual-kubelet.io/largest-free";
/// Condition of upper pods: what the lower scheduler says.
pub const SCHEDULED: &str = "multicluster.virtual-kubelet.io/Scheduled";
/// Condition of the virtual node: whether the lower API server answers.
pub const REACHABLE: &str = "multicluster.virtual-kubelet.io/LowerClusterReachable";

/// The most letters that a name of a namespace has, and the value of a label.
const MAX_LABEL_LENGTH: usize = 63;

/// Whose a lower object is: it is touched by nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The upper cluster.
    pub origin: String,
    /// The virtual node.
    pub node: String,
}

/// What a namespace is called below. No two have the same name there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMapping {
    /// As above.
    #[default]
    Same,
    /// As above, with something after it.
    Suffix(String),
    /// As it is said here; what is not said is not offered.
    Map(BTreeMap<String, String>),
}

// === impl Owner ===

impl Owner {
    /// The value of the label for a virtual node: names of nodes may be longer than labels.
    pub fn node_label(&self) -> String {
        shortened(&self.node, MAX_LABEL_LENGTH)
    }

    /// Whether a lower object is of this upper cluster.
    pub fn is_origin_of(&self, object: &ObjectMeta) -> bool {
        label(object, ORIGIN) == Some(self.origin.as_str())
    }

    /// Whether a lower pod is of this virtual node of this upper cluster.
    pub fn owns(&self, pod: &ObjectMeta) -> bool {
        self.is_origin_of(pod) && label(pod, NODE) == Some(self.node_label().as_str())
    }

    /// Selects the lower pods of this virtual node.
    pub fn selector(&self) -> String {
        format!("{ORIGIN}={},{NODE}={}", self.origin, self.node_label())
    }
}

// === impl NamespaceMapping ===

impl NamespaceMapping {
    /// What an upper namespace is called below; `None` if it has no place there.
    pub fn to_lower(&self, upper: &str) -> Option<String> {
        match self {
            Self::Same => Some(upper.to_owned()),
            Self::Suffix(suffix) => Some(shortened(&format!("{upper}{suffix}"), MAX_LABEL_LENGTH)),
            Self::Map(map) => map.get(upper).cloned(),
        }
    }

    /// The lower namespaces in which to look for what is ours; `None` for all of them.
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

/// A name that is too long is cut, and told from others that begin alike by its sum.
fn shortened(name: &str, max_length: usize) -> String {
    if name.len() <= max_length {
        return name.to_owned();
    }
    let digest = sha256_hex(name.as_bytes());
    let cut: String = name.chars().take(max_length - 9).collect();
    format!("{}-{}", cut.trim_end_matches(['-', '.']), &digest[..8])
}

/// A SHA-256 sum in hexadecimal digits.
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
    fn a_pod_is_owned_by_its_cluster_and_node_together() {
        let ours = Owner { origin: "o".to_owned(), node: "n".to_owned() };
        assert!(ours.owns(&object(&[(ORIGIN, "o"), (NODE, "n")])));
        assert!(!ours.owns(&object(&[(ORIGIN, "other"), (NODE, "n")])), "another upper cluster");
        assert!(!ours.owns(&object(&[(ORIGIN, "o"), (NODE, "other")])), "another virtual node");
        assert!(!ours.owns(&object(&[("virtual-pod", "true")])) && !ours.owns(&ObjectMeta::default()));
    }

    #[test]
    fn namespaces_that_begin_alike_stay_apart() {
        let suffix = NamespaceMapping::Suffix("-upper".to_owned());
        assert_eq!(suffix.to_lower("web").as_deref(), Some("web-upper"));
        let long = |last: char| format!("{}{last}", "n".repeat(60));
        let (a, b) = (suffix.to_lower(&long('a')).unwrap(), suffix.to_lower(&long('b')).unwrap());
        assert!(a != b && a.len() <= 63 && b.len() <= 63, "{a} {b}");
        let map = NamespaceMapping::Map([("web".to_owned(), "shop".to_owned())].into());
        assert_eq!((map.to_lower("web").as_deref(), map.to_lower("db")), (Some("shop"), None));
    }

    #[test]
    fn a_node_with_a_long_name_has_a_label_that_is_allowed() {
        let owner = Owner { origin: "o".to_owned(), node: format!("{}.example.com", "n".repeat(80)) };
        assert!(owner.node_label().len() <= 63);
        assert!(owner.owns(&object(&[(ORIGIN, "o"), (NODE, &owner.node_label())])));
    }
}
