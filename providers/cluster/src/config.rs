//! The configuration of the provider: one lower cluster and how it is offered.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use k8s_openapi::api::core::v1::Toleration;
use serde::Deserialize;
use vk_provider::{Config, Error, Quantity, Result};

use crate::{
    copies::KeptMetadata,
    names::{self, NamespaceMapping},
    node::{NodeShare, is_label_value},
    translate::{Accounts, AllowedChoices, ApiAccess, PodSecurity, TranslationPolicy},
};

/// How long a lower namespace stays that nothing uses any more, unless configured.
const NAMESPACE_RETENTION: Duration = Duration::from_hours(24);
/// The shortest time that can be configured for it: to look whether anything uses a namespace costs a list of every kind of objects.
const MIN_NAMESPACE_RETENTION: Duration = Duration::from_mins(1);

/// The settings, with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The kubeconfig of the lower cluster.
    pub kubeconfig: Option<PathBuf>,
    /// The name of the lower cluster; `None` for its id.
    pub cluster: Option<String>,
    /// The id of this upper cluster in the lower one; `None` for its own id.
    pub origin: Option<String>,
    /// Maps upper namespaces to lower ones.
    pub namespaces: NamespaceMapping,
    /// How pods are translated.
    pub policy: TranslationPolicy,
    /// Which lower nodes the virtual node stands for, and how much of them it offers.
    pub share: NodeShare,
    /// Whether the lower cluster adds nodes when pods need them: a pod that fits on no node may fit on a new one.
    pub autoscales: bool,
    /// What happens to a pod that somebody deletes in the lower cluster.
    pub lost: LostPodPolicy,
    /// How long a lower node may be lost before its terminating pods are considered lost.
    pub lost_after: Duration,
    /// Namespaces whose pods are not run in the lower cluster, even if they are bound to the virtual node.
    pub ignored_namespaces: Vec<String>,
    /// Whether pods of DaemonSets are run in the lower cluster.
    pub daemon_sets: bool,
    /// Names of StorageClasses in the lower cluster; classes that are not listed keep their names.
    pub storage_classes: BTreeMap<String, String>,
    /// Whether claims of our own StorageClasses get their volumes in the lower cluster.
    pub storage: bool,
    /// The labels and annotations that copies of ConfigMaps, Secrets and claims keep.
    pub copied_metadata: KeptMetadata,
    /// What happens to pods of StatefulSets on a lower node that is lost.
    pub lost_stateful_sets: LostStatefulSetPolicy,
    /// How long a lower namespace stays that nothing uses any more.
    pub namespace_retention: Duration,
    /// The virtual nodes of the lower cluster; if empty, one node with the name given to the process.
    pub nodes: Vec<NodeOverrides>,
}

/// One of several virtual nodes of a lower cluster. Missing fields are taken from the common settings.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeOverrides {
    /// The name.
    pub name: String,
    /// Selects the lower nodes.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// The percentage of the lower resources that is offered.
    pub percent: Option<u8>,
    /// The maximum that is offered.
    pub cap: Option<BTreeMap<String, Quantity>>,
    /// The tolerations of pods.
    pub tolerations: Option<Vec<Toleration>>,
}

/// What happens to a pod that somebody deletes in the lower cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LostPodPolicy {
    /// It fails, and its controller creates another.
    #[default]
    Fail,
    /// It is created again in the lower cluster.
    Recreate,
}

/// What happens to pods of StatefulSets, and of other controllers that may create a pod of the same name again, on a lower node that is
/// lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LostStatefulSetPolicy {
    /// They stay until the lower cluster confirms that their containers have ended.
    #[default]
    Wait,
    /// They fail as other pods do, and another pod of the name is created, although their containers may be running.
    Fail,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ConfigFile {
    kubeconfig: Option<PathBuf>,
    cluster: Option<String>,
    origin: Option<String>,
    namespace_suffix: Option<String>,
    namespaces: Option<BTreeMap<String, String>>,
    node_selector: BTreeMap<String, String>,
    virtual_nodes: bool,
    percent: Option<u8>,
    cap: BTreeMap<String, Quantity>,
    autoscales: bool,
    tolerations: Vec<Toleration>,
    ignore_labels: Option<Vec<String>>,
    ignore_annotations: Vec<String>,
    keep_pod_affinity: Option<bool>,
    host_access: bool,
    pod_security: Option<PodSecurity>,
    api_access: ApiAccess,
    service_account: Option<String>,
    service_accounts: BTreeMap<String, String>,
    allow: AllowedChoices,
    copy_labels: BTreeSet<String>,
    copy_annotations: BTreeSet<String>,
    priority_classes: BTreeMap<String, String>,
    runtime_classes: BTreeMap<String, String>,
    storage_classes: BTreeMap<String, String>,
    storage: bool,
    #[serde(with = "vk_provider::duration::option")]
    namespace_retention: Option<Duration>,
    lost: LostPodPolicy,
    lost_after_seconds: Option<u64>,
    lost_stateful_sets: LostStatefulSetPolicy,
    ignored_namespaces: Option<Vec<String>>,
    daemon_sets: bool,
    nodes: Vec<NodeOverrides>,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        ConfigFile::default().check().expect("invariant: the defaults are well formed")
    }
}

impl Settings {
    /// Reads the configuration. The error names the invalid field.
    pub fn read(config: &Config) -> Result<Self> {
        let file: ConfigFile = config.parse()?.unwrap_or_default();
        file.check().map_err(|why| {
            let place =
                config.path().map_or_else(|| "providerConfig".to_owned(), |path| path.display().to_string());
            Error::invalid(format!("{place}: {why}"))
        })
    }
}

// === impl Settings, by node ===

impl Settings {
    /// The settings of each virtual node. Without configured nodes there is one with this name.
    pub fn by_node(&self, name: &str) -> Vec<(String, Self)> {
        if self.nodes.is_empty() {
            return vec![(name.to_owned(), self.clone())];
        }
        self.nodes.iter().map(|node| (node.name.clone(), self.with(node))).collect()
    }

    fn with(&self, node: &NodeOverrides) -> Self {
        let mut settings = Self { nodes: Vec::new(), ..self.clone() };
        if let Some(selector) = &node.node_selector {
            settings.share.selector.clone_from(selector);
            settings.policy.node_selector.clone_from(selector);
        }
        if let Some(percent) = node.percent {
            settings.share.percent = percent;
        }
        if let Some(cap) = &node.cap {
            settings.share.cap.clone_from(cap);
        }
        if let Some(tolerations) = &node.tolerations {
            settings.share.tolerations.clone_from(tolerations);
            settings.policy.tolerations.clone_from(tolerations);
        }
        settings
    }
}

// === impl ConfigFile ===

impl ConfigFile {
    fn check(self) -> Result<Settings, String> {
        let namespaces = match (self.namespaces, self.namespace_suffix) {
            (Some(_), Some(_)) => {
                return Err("namespaces, namespaceSuffix: only one of them can be set".to_owned());
            }
            (Some(map), None) => NamespaceMapping::Map(check_injective(map)?),
            (None, Some(suffix)) => NamespaceMapping::Suffix(suffix),
            (None, None) => NamespaceMapping::Same,
        };
        check_names(&namespaces)?;
        // A namespace that is mapped explicitly is not ignored.
        let system = "kube-system".to_owned();
        let mapped = matches!(&namespaces, NamespaceMapping::Map(map) if map.contains_key(&system));
        let usual = if mapped { Vec::new() } else { vec![system] };
        let ignored_namespaces = self.ignored_namespaces.unwrap_or(usual);
        let percent = self.percent.unwrap_or(100);
        check_share("", percent, &self.cap)?;
        check_nodes(&self.nodes)?;
        for (key, value) in [("cluster", &self.cluster), ("origin", &self.origin)] {
            if let Some(value) = value.as_ref().filter(|value| value.is_empty() || !is_label_value(value)) {
                return Err(format!(
                    "{key}: {value:?} cannot be the value of a label: at most 63 letters, digits, '-', '_' and '.', with a letter or \
                     digit at both ends"
                ));
            }
        }
        let pod_security = match (self.host_access, self.pod_security) {
            (true, Some(_)) => {
                return Err("hostAccess, podSecurity: with `hostAccess: true` nothing is refused: set only one of them".to_owned());
            }
            (true, None) => PodSecurity::Privileged,
            (false, level) => level.unwrap_or_default(),
        };
        check_accounts(self.service_account.as_deref(), &self.service_accounts)?;
        for (option, keys) in [("copyLabels", &self.copy_labels), ("copyAnnotations", &self.copy_annotations)]
        {
            if let Some(key) = keys.iter().find(|key| key.starts_with(names::PREFIX)) {
                return Err(format!("{option}: {key} is reserved for the provider"));
            }
        }
        let namespace_retention = self.namespace_retention.unwrap_or(NAMESPACE_RETENTION);
        if namespace_retention < MIN_NAMESPACE_RETENTION {
            return Err(format!(
                "namespaceRetention: {namespace_retention:?} is too short: set 1m or more, or leave it out for 24h"
            ));
        }
        let default = TranslationPolicy::default();
        Ok(Settings {
            kubeconfig: self.kubeconfig,
            cluster: self.cluster,
            origin: self.origin,
            namespaces: namespaces.clone(),
            share: NodeShare {
                selector: self.node_selector.clone(),
                virtual_nodes: self.virtual_nodes,
                percent,
                cap: self.cap,
                tolerations: self.tolerations.clone(),
            },
            policy: TranslationPolicy {
                namespaces,
                node_selector: self.node_selector,
                tolerations: self.tolerations,
                ignored_labels: self.ignore_labels.unwrap_or(default.ignored_labels),
                ignored_annotations: self.ignore_annotations,
                keeps_pod_affinity: self.keep_pod_affinity.unwrap_or(true),
                pod_security,
                access: self.api_access,
                accounts: Accounts { default: self.service_account, by_upper: self.service_accounts },
                priority_classes: self.priority_classes,
                runtime_classes: self.runtime_classes,
                allowed: self.allow,
            },
            autoscales: self.autoscales,
            lost: self.lost,
            lost_after: Duration::from_secs(self.lost_after_seconds.unwrap_or(300)),
            ignored_namespaces,
            daemon_sets: self.daemon_sets,
            storage_classes: self.storage_classes,
            storage: self.storage,
            copied_metadata: KeptMetadata { labels: self.copy_labels, annotations: self.copy_annotations },
            lost_stateful_sets: self.lost_stateful_sets,
            namespace_retention,
            nodes: self.nodes,
        })
    }
}

fn check_accounts(default: Option<&str>, by_upper: &BTreeMap<String, String>) -> Result<(), String> {
    let empty = by_upper.iter().find(|(upper, lower)| upper.is_empty() || lower.is_empty());
    match empty {
        _ if default == Some("") => Err("serviceAccount: must not be empty".to_owned()),
        Some((upper, lower)) => Err(format!(
            "serviceAccounts: {upper:?}: {lower:?}: expected NAME or NAMESPACE/NAME of an upper account, and the name of a lower one"
        )),
        None => Ok(()),
    }
}

fn check_nodes(nodes: &[NodeOverrides]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for (number, node) in nodes.iter().enumerate() {
        let at = format!("nodes[{number}].");
        if node.name.is_empty() {
            return Err(format!("{at}name: must not be empty"));
        }
        if !names.insert(&node.name) {
            return Err(format!("{at}name: duplicate name {}", node.name));
        }
        check_share(&at, node.percent.unwrap_or(100), node.cap.as_ref().unwrap_or(&BTreeMap::new()))?;
    }
    Ok(())
}

fn check_share(at: &str, percent: u8, cap: &BTreeMap<String, Quantity>) -> Result<(), String> {
    if !(1..=100).contains(&percent) {
        return Err(format!("{at}percent: {percent} is not between 1 and 100"));
    }
    match cap.iter().find(|(_, amount)| amount.is_negative()) {
        Some((name, amount)) => Err(format!("{at}cap.{name}: {amount} is less than nothing")),
        None => Ok(()),
    }
}

/// Checks that the names of lower namespaces are valid.
fn check_names(namespaces: &NamespaceMapping) -> Result<(), String> {
    let letters = |text: &str| text.bytes().all(|letter| matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    let is_name = |text: &str| {
        (1..=63).contains(&text.len()) && letters(text) && !text.starts_with('-') && !text.ends_with('-')
    };
    match namespaces {
        NamespaceMapping::Suffix(suffix)
            if !letters(suffix) || suffix.ends_with('-') || suffix.is_empty() =>
        {
            Err(format!("namespaceSuffix: no namespace can end with {suffix:?}"))
        }
        NamespaceMapping::Map(map) => match map.iter().find(|(_, lower)| !is_name(lower)) {
            Some((upper, lower)) => {
                Err(format!("namespaces.{upper}: {lower:?} cannot be the name of a namespace"))
            }
            None => Ok(()),
        },
        NamespaceMapping::Same | NamespaceMapping::Suffix(_) => Ok(()),
    }
}

/// Checks that no two namespaces are mapped to the same one.
fn check_injective(map: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
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
    fn every_setting_has_a_default() {
        let settings = Settings::read(&Config::Default).unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(
            settings.policy.ignored_labels,
            ["pod-group.scheduling.sigs.k8s.io"],
            "as in tensile-kube"
        );
        assert_eq!((settings.lost, settings.lost_after), (LostPodPolicy::Fail, Duration::from_mins(5)));
        assert_eq!(settings.ignored_namespaces, ["kube-system"]);
        let policy = &settings.policy;
        assert_eq!((policy.pod_security, policy.access), (PodSecurity::Baseline, ApiAccess::None));
        assert_eq!((&policy.allowed, &policy.accounts), (&AllowedChoices::default(), &Accounts::default()));
        assert_eq!(settings.copied_metadata, KeptMetadata::default(), "no label of a copy is kept");
        assert_eq!(settings.lost_stateful_sets, LostStatefulSetPolicy::Wait);
        assert_eq!(settings.namespace_retention, Duration::from_hours(24));
        assert!(!settings.autoscales && read(json!({"autoscales": true})).unwrap().autoscales);
        assert_eq!(
            read(json!({"namespaceRetention": "10m"})).unwrap().namespace_retention,
            Duration::from_mins(10)
        );
    }

    #[test]
    fn namespaces_stay_for_a_minute_at_least() {
        for short in ["0", "59s"] {
            let error = read(json!({"namespaceRetention": short})).unwrap_err();
            assert!(error.contains("namespaceRetention") && error.contains("1m or more"), "{error}");
        }
        let settings = read(json!({"namespaceRetention": "1m"})).unwrap();
        assert_eq!(settings.namespace_retention, Duration::from_mins(1));
    }

    #[test]
    fn host_access_and_pod_security_name_one_level() {
        let level = |value: serde_json::Value| read(value).unwrap().policy.pod_security;
        assert_eq!(level(json!({"hostAccess": true})), PodSecurity::Privileged);
        assert_eq!(level(json!({"hostAccess": false})), PodSecurity::Baseline);
        assert_eq!(level(json!({"podSecurity": "baseline"})), PodSecurity::Baseline);
        assert_eq!(level(json!({"podSecurity": "restricted"})), PodSecurity::Restricted);
    }

    #[test]
    fn invalid_settings_are_rejected_with_their_path() {
        for (value, words) in [
            (json!({"percent": 0}), "percent: 0"),
            (json!({"cap": {"cpu": "-1"}}), "cap.cpu: -1"),
            (json!({"namespaces": {"a": "c", "b": "c"}}), "a and b would both be c"),
            (json!({"namespaces": {}, "namespaceSuffix": "-x"}), "one of them"),
            (json!({"nodeSelecter": {}}), "did you mean `nodeSelector`"),
            (json!({"lost": "maybe"}), "maybe"),
            (json!({"cluster": "a/b"}), "cluster: \"a/b\" cannot be the value of a label"),
            (json!({"namespaceSuffix": "_x"}), "no namespace can end with \"_x\""),
            (json!({"namespaces": {"a": "B"}}), "namespaces.a: \"B\" cannot be"),
            (json!({"origin": ""}), "origin: \"\""),
            (json!({"nodes": [{"name": "a"}, {"name": "a"}]}), "nodes[1].name: duplicate name a"),
            (json!({"nodes": [{"name": "a", "percent": 101}]}), "nodes[0].percent: 101"),
            (json!({"nodes": [{"name": "a", "selector": {}}]}), "selector"),
            (json!({"hostAccess": true, "podSecurity": "restricted"}), "only one of them"),
            (json!({"podSecurity": "privileged"}), "privileged"),
            (json!({"serviceAccount": ""}), "serviceAccount: must not be empty"),
            (json!({"serviceAccounts": {"a": ""}}), "serviceAccounts: \"a\""),
            (json!({"allow": {"scheduler": []}}), "scheduler"),
            (json!({"copyLabels": [names::ORIGIN]}), "copyLabels: multicluster"),
        ] {
            let message = read(value).unwrap_err();
            assert!(message.contains(words), "{words:?} in {message}");
        }
    }

    #[test]
    fn a_cluster_can_be_offered_as_several_nodes() {
        let one = read(json!({"percent": 50})).unwrap();
        assert_eq!(one.by_node("vk"), [("vk".to_owned(), one.clone())]);
        let several = read(json!({"percent": 50, "nodeSelector": {"pool": "a"}, "nodes": [
            {"name": "vk-a"}, {"name": "vk-b", "nodeSelector": {"pool": "b"}, "percent": 20, "cap": {"cpu": "4"}}]}));
        let nodes = several.unwrap().by_node("vk");
        let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["vk-a", "vk-b"]);
        let pools: Vec<&str> =
            nodes.iter().map(|(_, one)| one.policy.node_selector["pool"].as_str()).collect();
        assert_eq!(pools, ["a", "b"]);
        assert_eq!((nodes[0].1.share.percent, nodes[1].1.share.percent), (50, 20));
        assert_eq!((nodes[0].1.share.cap.len(), nodes[1].1.share.cap.len()), (0, 1));
    }

    #[test]
    fn the_selector_applies_to_nodes_and_pods() {
        let settings = read(json!({"nodeSelector": {"pool": "a"}, "percent": 50})).unwrap();
        assert_eq!(settings.share.selector, settings.policy.node_selector);
        assert_eq!(settings.share.percent, 50);
    }
}
