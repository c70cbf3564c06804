//! The node template that is passed to the provider: names, defaults and the user's configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::api::core::v1::{NodeAddress, Taint};
use vk_provider::{
    NodeTemplate, Provider,
    node::{Condition, ConditionStatus, System},
    placement::{FIT, PLACEMENT_ANNOTATION, SERVING_KEY_ANNOTATION, TRIAL},
};

/// Excludes the node from load balancers: legacy key.
const EXCLUDE_BALANCER_OLD: &str = "alpha.service-controller.kubernetes.io/exclude-balancer";
/// Excludes the node from load balancers: current key.
const EXCLUDE_BALANCER: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// A virtual node as configured by the user.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    /// Name of the Node object.
    pub name: String,
    /// Address of this node's kubelet API.
    pub internal_ip: IpAddr,
    /// External address of the kubelet API.
    pub external_ip: Option<IpAddr>,
    /// Host name of the kubelet API, which API servers try before its addresses. Only one that they can resolve.
    pub hostname: Option<String>,
    /// Port of the kubelet API.
    pub kubelet_port: u16,
    /// `linux` or `windows`.
    pub operating_system: String,
    /// Reported kubelet version, such as `v1.36.4-vk-0.1.0`.
    pub kubelet_version: String,
    /// Labels in addition to the defaults. An empty value is set as such; it does not remove a default.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Kubernetes features that this process supports; the provider may add more. `None`: the API server does not know the
    /// field, and would reject it.
    pub declared_features: Option<BTreeSet<String>>,
}

impl NodeConfig {
    /// Builds the template and lets the provider change it.
    pub fn describe(&self, provider: &dyn Provider) -> NodeTemplate {
        let mut template = self.template();
        provider.configure_node(&mut template);
        if self.declared_features.is_none() {
            template.declared_features.clear();
        }
        template
    }

    fn template(&self) -> NodeTemplate {
        let architecture = go_architecture();
        let os = self.operating_system.as_str();
        let defaults = [
            ("type", "virtual-kubelet"),
            ("kubernetes.io/role", "agent"),
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", os),
            ("beta.kubernetes.io/os", os),
            ("kubernetes.io/arch", architecture),
            (EXCLUDE_BALANCER_OLD, "true"),
            (EXCLUDE_BALANCER, "true"),
        ];
        let mut labels: BTreeMap<String, String> =
            defaults.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        labels.extend(self.labels.clone());
        NodeTemplate {
            labels,
            annotations: self.annotations.clone(),
            taints: self.taints.clone(),
            declared_features: self.declared_features.clone().unwrap_or_default(),
            addresses: [address("InternalIP", &self.internal_ip.to_string())]
                .into_iter()
                .chain(self.external_ip.map(|ip| address("ExternalIP", &ip.to_string())))
                .chain(self.hostname.as_ref().map(|hostname| address("Hostname", hostname)))
                .collect(),
            conditions: [
                ("MemoryPressure", "KubeletHasSufficientMemory", "the provider has sufficient memory"),
                ("DiskPressure", "KubeletHasNoDiskPressure", "the provider has no disk pressure"),
                ("PIDPressure", "KubeletHasSufficientPID", "the provider has sufficient PIDs"),
            ]
            .into_iter()
            .map(|(kind, reason, message)| Condition {
                kind: kind.to_owned(),
                status: ConditionStatus::False,
                reason: reason.to_owned(),
                message: message.to_owned(),
            })
            .collect(),
            system: System {
                operating_system: os.to_owned(),
                architecture: architecture.to_owned(),
                ..System::default()
            },
            ..NodeTemplate::default()
        }
    }
}

/// Declares what placement can ask of the node. It must know the key of the server that it asks, so a node without one declares nothing. Only
/// we set these annotations, neither the provider nor the user.
pub(super) fn declare_placement(
    template: &mut NodeTemplate,
    has_fit: bool,
    takes_trials: bool,
    serving_key: Option<&str>,
) {
    let annotations = &mut template.annotations;
    annotations.remove(PLACEMENT_ANNOTATION);
    annotations.remove(SERVING_KEY_ANNOTATION);
    if let (true, Some(key)) = (has_fit, serving_key) {
        let entries = if takes_trials { format!("{FIT},{TRIAL}") } else { FIT.to_owned() };
        annotations.insert(PLACEMENT_ANNOTATION.to_owned(), entries);
        annotations.insert(SERVING_KEY_ANNOTATION.to_owned(), key.to_owned());
    }
}

fn address(kind: &str, value: &str) -> NodeAddress {
    NodeAddress { type_: kind.to_owned(), address: value.to_owned() }
}

/// This machine's architecture in Go's spelling, which Kubernetes uses.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Whether NodeRestriction allows a node to set this label on itself.
///
/// Labels outside the Kubernetes domains are allowed. Inside them, only labels that a kubelet manages are (the list is part
/// of the Kubernetes API, `k8s.io/kubelet/pkg/apis`).
pub fn node_may_set_label(key: &str) -> bool {
    const KUBELET_LABELS: [&str; 11] = [
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    ];
    const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
    let Some((domain, _)) = key.split_once('/') else { return true };
    let within = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
    if !within("kubernetes.io") && !within("k8s.io") {
        return true;
    }
    KUBELET_LABELS.contains(&key) || KUBELET_DOMAINS.into_iter().any(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn features_are_declared_only_to_an_api_server_that_knows_them() {
        let mock = vk_provider_mock::Mock::builder("vk").build();
        let config = |declared_features| NodeConfig {
            name: "vk".to_owned(),
            hostname: None,
            internal_ip: [192, 0, 2, 1].into(),
            external_ip: None,
            kubelet_port: 10_250,
            operating_system: "linux".to_owned(),
            kubelet_version: "v1".to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
            declared_features,
        };
        let ours = BTreeSet::from(["Ours".to_owned()]);
        let declared = config(Some(ours.clone())).describe(&mock).declared_features;
        assert!(declared.is_superset(&ours), "{declared:?}");
        assert_eq!(config(None).describe(&mock).declared_features, BTreeSet::new());
    }

    #[test]
    fn a_node_declares_fit_only_together_with_the_key_of_its_server() {
        let declared = |has_fit: bool, takes_trials: bool, key: Option<&str>| {
            let mut template = NodeTemplate::default();
            let forged =
                [(PLACEMENT_ANNOTATION, "fit"), (SERVING_KEY_ANNOTATION, "forged"), ("other", "stays")];
            template.annotations.extend(forged.map(|(key, value)| (key.to_owned(), value.to_owned())));
            declare_placement(&mut template, has_fit, takes_trials, key);
            assert_eq!(template.annotations.remove("other").as_deref(), Some("stays"));
            template.annotations.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(
            declared(true, false, Some("sha256:12")),
            ["virtual-kubelet.io/placement=fit", "virtual-kubelet.io/serving-key=sha256:12"]
        );
        assert_eq!(
            declared(true, true, Some("sha256:12")),
            ["virtual-kubelet.io/placement=fit,trial", "virtual-kubelet.io/serving-key=sha256:12"]
        );
        assert_eq!(declared(true, true, None), Vec::<String>::new());
        assert_eq!(declared(false, true, Some("sha256:12")), Vec::<String>::new());
    }

    #[test]
    fn a_node_may_set_only_a_kubelets_labels_in_the_domains_of_kubernetes() {
        for allowed in [
            "type",
            "example.com/team",
            "virtual-kubelet.io/provider",
            "kubernetes.io/hostname",
            "beta.kubernetes.io/os",
            EXCLUDE_BALANCER,
            "node.kubernetes.io/exclude-disruption",
            "gpu.node.kubernetes.io/model",
            "notkubernetes.io/x",
        ] {
            assert!(node_may_set_label(allowed), "{allowed}");
        }
        for refused in [
            "kubernetes.io/role",
            "node-role.kubernetes.io/agent",
            EXCLUDE_BALANCER_OLD,
            "node-restriction.kubernetes.io/tier",
            "x.k8s.io/y",
        ] {
            assert!(!node_may_set_label(refused), "{refused}");
        }
    }
}
