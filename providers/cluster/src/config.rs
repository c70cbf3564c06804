//! The provider's configuration: one lower cluster, and how it is offered.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Toleration;
use serde::Deserialize;
use vk_provider::{Config, Error, Quantity, Result};

use crate::{
    names::Namespaces,
    node::Share,
    translate::{Access, Policy},
};

/// What is configured, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where the kubeconfig of the lower cluster is; `None` is the cluster that this process runs in.
    pub kubeconfig: Option<PathBuf>,
    /// What the lower cluster is called; `None` is its own id.
    pub cluster: Option<String>,
    /// What this upper cluster is called below; `None` is its own id.
    pub origin: Option<String>,
    /// What namespaces are called below.
    pub namespaces: Namespaces,
    /// How pods are translated.
    pub policy: Policy,
    /// Which lower nodes the virtual node stands for, and how much of them it offers.
    pub share: Share,
    /// What becomes of a pod that somebody deletes below.
    pub lost: Lost,
    /// How long the node of a lower pod may be lost before the pod is.
    pub lost_after: Duration,
    /// Namespaces whose pods are not run below, though they are bound to the virtual node.
    pub ignored_namespaces: Vec<String>,
    /// What StorageClasses are called below; others keep their names.
    pub storage_classes: BTreeMap<String, String>,
}

/// What becomes of a pod that somebody deletes below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lost {
    /// It has failed, and whoever made it makes another.
    #[default]
    Fail,
    /// It is made again below.
    Recreate,
}

/// The configuration as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Written {
    kubeconfig: Option<PathBuf>,
    cluster: Option<String>,
    origin: Option<String>,
    namespace_suffix: Option<String>,
    namespaces: Option<BTreeMap<String, String>>,
    node_selector: BTreeMap<String, String>,
    virtual_nodes: bool,
    percent: Option<u8>,
    cap: BTreeMap<String, Quantity>,
    tolerations: Vec<Toleration>,
    ignore_labels: Option<Vec<String>>,
    ignore_annotations: Vec<String>,
    keep_pod_affinity: Option<bool>,
    host_access: Option<bool>,
    api_access: Access,
    priority_classes: BTreeMap<String, String>,
    runtime_classes: BTreeMap<String, String>,
    storage_classes: BTreeMap<String, String>,
    lost: Lost,
    lost_after_seconds: Option<u64>,
    ignored_namespaces: Option<Vec<String>>,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Written::default().check().expect("invariant: the defaults are well formed")
    }
}

impl Settings {
    /// Reads the configuration. `Invalid` says where the mistake is.
    pub fn read(config: &Config) -> Result<Self> {
        let written: Written = config.parse()?.unwrap_or_default();
        written.check().map_err(|why| {
            let place =
                config.path().map_or_else(|| "providerConfig".to_owned(), |path| path.display().to_string());
            Error::invalid(format!("{place}: {why}"))
        })
    }
}

// === impl Written ===

impl Written {
    fn check(self) -> Result<Settings, String> {
        let namespaces = match (self.namespaces, self.namespace_suffix) {
            (Some(_), Some(_)) => {
                return Err("namespaces, namespaceSuffix: there can be one of them".to_owned());
            }
            (Some(map), None) => Namespaces::Map(injective(map)?),
            (None, Some(suffix)) => Namespaces::Suffix(suffix),
            (None, None) => Namespaces::Same,
        };
        let percent = self.percent.unwrap_or(100);
        if !(1..=100).contains(&percent) {
            return Err(format!("percent: {percent} is not between 1 and 100"));
        }
        if let Some((name, amount)) = self.cap.iter().find(|(_, amount)| amount.is_negative()) {
            return Err(format!("cap.{name}: {amount} is less than nothing"));
        }
        let default = Policy::default();
        Ok(Settings {
            kubeconfig: self.kubeconfig,
            cluster: self.cluster,
            origin: self.origin,
            namespaces: namespaces.clone(),
            share: Share {
                selector: self.node_selector.clone(),
                virtual_nodes: self.virtual_nodes,
                percent,
                cap: self.cap,
                tolerations: self.tolerations.clone(),
            },
            policy: Policy {
                namespaces,
                node_selector: self.node_selector,
                tolerations: self.tolerations,
                ignored_labels: self.ignore_labels.unwrap_or(default.ignored_labels),
                ignored_annotations: self.ignore_annotations,
                keeps_pod_affinity: self.keep_pod_affinity.unwrap_or(true),
                host_access: self.host_access.unwrap_or(true),
                access: self.api_access,
                priority_classes: self.priority_classes,
                runtime_classes: self.runtime_classes,
            },
            lost: self.lost,
            lost_after: Duration::from_secs(self.lost_after_seconds.unwrap_or(300)),
            ignored_namespaces: self.ignored_namespaces.unwrap_or_else(|| vec!["kube-system".to_owned()]),
            storage_classes: self.storage_classes,
        })
    }
}

/// Two namespaces must not become one.
fn injective(map: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (upper, lower) in &map {
        if let Some(other) = seen.insert(lower, upper) {
            return Err(format!("namespaces: {other} and {upper} would both be {lower}"));
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<Settings, String> {
        Settings::read(&Config::Inline(value)).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_has_to_be_said() {
        let settings = Settings::read(&Config::Default).unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(
            settings.policy.ignored_labels,
            ["pod-group.scheduling.sigs.k8s.io"],
            "as in tensile-kube"
        );
        assert_eq!((settings.lost, settings.lost_after), (Lost::Fail, Duration::from_mins(5)));
        assert_eq!(settings.ignored_namespaces, ["kube-system"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_place() {
        for (value, words) in [
            (json!({"percent": 0}), "percent: 0"),
            (json!({"cap": {"cpu": "-1"}}), "cap.cpu: -1"),
            (json!({"namespaces": {"a": "c", "b": "c"}}), "a and b would both be c"),
            (json!({"namespaces": {}, "namespaceSuffix": "-x"}), "one of them"),
            (json!({"nodeSelecter": {}}), "did you mean `nodeSelector`"),
            (json!({"lost": "maybe"}), "maybe"),
        ] {
            let message = read(value).unwrap_err();
            assert!(message.contains(words), "{words:?} in {message}");
        }
    }

    #[test]
    fn the_selector_holds_for_nodes_and_for_pods() {
        let settings = read(json!({"nodeSelector": {"pool": "a"}, "percent": 50})).unwrap();
        assert_eq!(settings.share.selector, settings.policy.node_selector);
        assert_eq!(settings.share.percent, 50);
    }
}
