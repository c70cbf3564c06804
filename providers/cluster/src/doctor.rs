//! Checks for `virtual-kubelet doctor`: whether pods can run in the lower cluster.

use std::{collections::BTreeMap, fmt, time::Duration};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use serde::Deserialize;
use vk_kube::{Client, ClientOptions, Error, Kind, Metrics, Objects, Selector, access::AccessCheck};
use vk_provider::Finding;
use vk_supervisor::Supervisor;

use crate::{config::Settings, names::NamespaceMapping, node::aggregate};

/// The number of concurrent access checks.
const CONCURRENCY: usize = 8;
/// The oldest minor version that is tested.
const OLDEST_MINOR: u32 = 33;
/// The published roles.
const ROLES: &str =
    "apply deploy/rbac-cluster-lower.yaml or rbac-cluster-lower-namespace.yaml in the lower cluster";

/// Whether a permission is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Pods do not run without it.
    Required,
    /// A feature is missing without it.
    Optional,
}

/// A permission that the provider uses in the lower cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The request that must be allowed.
    pub check: AccessCheck,
    /// Whether it is required.
    pub requirement: Requirement,
    /// What it is needed for.
    pub purpose: &'static str,
}

const CORE: &str = "";
const OBJECT: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
const FOLLOW: [&str; 2] = ["list", "watch"];
const CONNECT: [&str; 2] = ["get", "create"];

/// Permissions in the namespaces of pods: group, resource, verbs.
const IN_NAMESPACES: [(&str, &str, &[&str], Requirement, &str); 13] = [
    (CORE, "pods", &OBJECT, Requirement::Required, "to run pods"),
    (
        CORE,
        "configmaps",
        &OBJECT,
        Requirement::Required,
        "to copy what pods refer to, and for the owner ConfigMap",
    ),
    (CORE, "secrets", &OBJECT, Requirement::Required, "to copy what pods refer to"),
    (CORE, "serviceaccounts", &OBJECT, Requirement::Required, "to create the service accounts of pods"),
    (CORE, "persistentvolumeclaims", &OBJECT, Requirement::Required, "to copy the claims of pods"),
    (CORE, "pods/log", &["get"], Requirement::Optional, "to read logs"),
    (CORE, "pods/exec", &CONNECT, Requirement::Optional, "to run commands in containers"),
    (CORE, "pods/attach", &CONNECT, Requirement::Optional, "to attach to containers"),
    (CORE, "pods/portforward", &CONNECT, Requirement::Optional, "to forward ports"),
    (CORE, "pods/ephemeralcontainers", &["patch"], Requirement::Optional, "to add ephemeral containers"),
    (CORE, "pods/resize", &["patch"], Requirement::Optional, "to resize pods in place"),
    (CORE, "events", &FOLLOW, Requirement::Optional, "to relay events of lower pods"),
    (CORE, "resourcequotas", &FOLLOW, Requirement::Optional, "to know how many pods quotas admit"),
];

/// Cluster-wide permissions.
const IN_CLUSTER: [(&str, &str, &[&str], Requirement, &str); 7] = [
    (CORE, "nodes", &FOLLOW, Requirement::Optional, "to compute the resources of the virtual node"),
    (
        "scheduling.k8s.io",
        "priorityclasses",
        &FOLLOW,
        Requirement::Optional,
        "to know which priority classes there are",
    ),
    (
        "node.k8s.io",
        "runtimeclasses",
        &FOLLOW,
        Requirement::Optional,
        "to know which runtime classes there are",
    ),
    (CORE, "persistentvolumes", &["get"], Requirement::Optional, "to bind claims to existing volumes"),
    (CORE, "persistentvolumes", &FOLLOW, Requirement::Optional, "to know on which nodes volumes can be used"),
    (
        "resource.k8s.io",
        "deviceclasses",
        &["list"],
        Requirement::Optional,
        "to know which resources devices provide",
    ),
    (CORE, "nodes/proxy", &["get"], Requirement::Optional, "to read exact usage of containers"),
];

/// All permissions that the provider uses with this namespace mapping.
pub fn permissions(namespaces: &NamespaceMapping) -> Vec<Permission> {
    let scopes: Vec<String> = match namespaces {
        NamespaceMapping::Map(map) => map.values().cloned().collect(),
        NamespaceMapping::Same | NamespaceMapping::Suffix(_) => vec![String::new()],
    };
    let mut all = Vec::new();
    let mut add =
        |namespace: &str,
         (group, resource, verbs, requirement, purpose): (&str, &str, &[&str], Requirement, _)| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            all.extend(verbs.iter().map(|verb| Permission {
                check: AccessCheck {
                    verb: (*verb).to_owned(),
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    subresource: subresource.to_owned(),
                    namespace: namespace.to_owned(),
                    name: String::new(),
                },
                requirement,
                purpose,
            }));
        };
    for namespace in &scopes {
        for row in IN_NAMESPACES {
            add(namespace, row);
        }
        add(namespace, ("metrics.k8s.io", "pods", &["list"], Requirement::Optional, "to read usage of pods"));
    }
    for row in IN_CLUSTER {
        add("", row);
    }
    if matches!(namespaces, NamespaceMapping::Map(_)) {
        // Mapped namespaces must exist already.
        add("", (CORE, "pods", &FOLLOW, Requirement::Optional, "to subtract what other pods use"));
        add("", (CORE, "namespaces", &["get"], Requirement::Optional, "to identify the cluster"));
        if let Some(permission) = all.last_mut() {
            "kube-system".clone_into(&mut permission.check.name);
        }
    } else {
        add(
            "",
            (
                CORE,
                "namespaces",
                &["get", "create"],
                Requirement::Required,
                "to create the namespaces of pods",
            ),
        );
    }
    all
}

/// Checks whether pods can run in the configured lower cluster.
pub async fn examine(settings: &Settings) -> Vec<Finding> {
    let remedy = "give the kubeconfig of the lower cluster with --client-kubeconfig, or `kubeconfig` in the provider's configuration";
    let Some(path) = &settings.kubeconfig else {
        return vec![Finding::error("lower kubeconfig", "is not configured", remedy)];
    };
    let supervisor = Supervisor::new();
    let source = ClientOptions { kubeconfig: Some(path.clone()), server: None };
    let findings = match source.connect(&supervisor, Metrics::default()).await {
        Ok(client) => {
            let mut findings = vec![Finding::ok("lower kubeconfig", path.display().to_string())];
            findings.extend(examine_cluster(&client, settings).await);
            findings
        }
        Err(error) => vec![Finding::error("lower kubeconfig", error.to_string(), remedy)],
    };
    supervisor.shut_down(Duration::from_secs(1)).await;
    findings
}

async fn examine_cluster(client: &Client, settings: &Settings) -> Vec<Finding> {
    match version(client).await {
        Ok(finding) => {
            let mut findings = vec![finding];
            findings.extend(check_permissions(client, permissions(&settings.namespaces)).await);
            findings.extend(check_nodes(client, settings).await);
            findings
        }
        Err(error) => {
            let remedy = match error.kind {
                Kind::Unauthorized => "renew the token or the certificate in the lower kubeconfig",
                Kind::Forbidden => {
                    "bind the default ClusterRoles for authenticated users (system:basic-user, system:public-info-viewer)"
                }
                _ => "check that the address in the lower kubeconfig is correct and reachable from here",
            };
            vec![Finding::error("lower API server", format!("{}: {error}", client.server()), remedy)]
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerVersion {
    git_version: String,
    minor: String,
}

async fn version(client: &Client) -> Result<Finding, Error> {
    // In most clusters the version can be read without valid credentials, so an access check comes first.
    AccessCheck { verb: "list".to_owned(), resource: "nodes".to_owned(), ..AccessCheck::default() }
        .allowed(client)
        .await?;
    let version: ServerVersion = client.read("version", "/version").await?;
    let found = format!("{} is {}", client.server(), version.git_version);
    let minor = version.minor.trim_end_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
    Ok(if minor < OLDEST_MINOR {
        let remedy = format!("clusters before 1.{OLDEST_MINOR} are not tested: use a newer one");
        Finding::warning("lower API server", found, remedy)
    } else {
        Finding::ok("lower API server", found)
    })
}

/// One finding for each virtual node: how many lower nodes count for it. None if nodes cannot be read, which is a missing permission.
async fn check_nodes(client: &Client, settings: &Settings) -> Vec<Finding> {
    const CHECK: &str = "lower nodes";
    let nodes = match Objects::<Node>::all(client.clone()).list(&Selector::default()).await {
        Ok(list) => list.objects,
        Err(error) if error.kind == Kind::Forbidden => return Vec::new(),
        Err(error) => return vec![Finding::error(CHECK, error.to_string(), "try again")],
    };
    let finding = |(name, settings): (String, Settings)| {
        let sum = aggregate(&nodes, &BTreeMap::new(), &settings.share);
        let of = if name.is_empty() { String::new() } else { format!("{name}: ") };
        if let Some(why) = sum.why_no_nodes() {
            let remedy =
                "the virtual node would offer nothing: change the configuration, or make nodes available";
            return Finding::warning(CHECK, format!("{of}{why}"), remedy);
        }
        let exclusions = sum.exclusions().map(|text| format!("; left out: {text}")).unwrap_or_default();
        Finding::ok(CHECK, format!("{of}{} of {} count{exclusions}", sum.nodes, nodes.len()))
    };
    settings.by_node("").into_iter().map(finding).collect()
}

/// One finding for each missing permission.
async fn check_permissions(client: &Client, permissions: Vec<Permission>) -> Vec<Finding> {
    let count = permissions.len();
    let asked = permissions.into_iter().map(|permission| async move {
        let answer = permission.check.allowed(client).await;
        (permission, answer)
    });
    let answers: Vec<(Permission, Result<bool, Error>)> =
        stream::iter(asked).buffered(CONCURRENCY).collect().await;
    let mut findings: Vec<Finding> = Vec::new();
    for (permission, answer) in answers {
        match answer {
            Ok(true) => {}
            Ok(false) => {
                let found = format!("not allowed to {permission} ({})", permission.purpose);
                findings.push(match permission.requirement {
                    Requirement::Required => Finding::error("lower permissions", found, ROLES),
                    Requirement::Optional => Finding::warning("lower permissions", found, ROLES),
                });
            }
            Err(error) => {
                let remedy = "try again";
                findings.push(Finding::error("lower permissions", format!("{permission}: {error}"), remedy));
            }
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok("lower permissions", format!("all {count} are granted")));
    }
    findings
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessCheck { verb, group, resource, subresource, namespace, name } = &self.check;
        write!(f, "{verb} {resource}")?;
        if !subresource.is_empty() {
            write!(f, "/{subresource}")?;
        }
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if namespace.is_empty() { Ok(()) } else { write!(f, " in {namespace}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_checked_in_their_namespaces() {
        let everywhere = permissions(&NamespaceMapping::Same);
        assert!(everywhere.iter().all(|permission| permission.check.namespace.is_empty()));
        let map = NamespaceMapping::Map(
            [("a".to_owned(), "x".to_owned()), ("b".to_owned(), "y".to_owned())].into(),
        );
        let words: Vec<String> = permissions(&map).iter().map(ToString::to_string).collect();
        for wanted in
            ["create pods/exec in x", "delete secrets in y", "list nodes", "list pods.metrics.k8s.io in x"]
        {
            assert!(words.iter().any(|word| word == wanted), "{wanted} in {words:?}");
        }
        assert!(!words.contains(&"create namespaces".to_owned()), "they are there already");
        assert!(words.contains(&"get namespaces kube-system".to_owned()), "{words:?}");
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_reported_with_a_remedy() {
        let settings = Settings { kubeconfig: Some("/no/such/file".into()), ..Settings::default() };
        let findings: Vec<String> = examine(&settings).await.iter().map(ToString::to_string).collect();
        assert_eq!(findings.len(), 1, "{findings:?}");
        for word in ["error", "/no/such/file", "--client-kubeconfig"] {
            assert!(findings[0].contains(word), "{word} in {findings:?}");
        }
        let findings = examine(&Settings::default()).await;
        assert!(findings[0].remedy.contains("--client-kubeconfig"), "{findings:?}");
    }
}
