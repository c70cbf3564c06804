//! Whether pods could run in the lower cluster: for `virtual-kubelet doctor`.

use std::{fmt, time::Duration};

use futures::{StreamExt as _, stream};
use serde::Deserialize;
use vk_kube::{Client, Error, Kind, Metrics, Source, access::AccessCheck};
use vk_provider::Finding;
use vk_supervisor::Supervisor;

use crate::{config::Settings, names::NamespaceMapping};

/// How many questions are asked at a time.
const AT_ONCE: usize = 8;
/// The oldest lower cluster that is tested.
const OLDEST: u32 = 33;
/// The published roles.
const ROLES: &str = "apply deploy/rbac-cluster-lower.yaml below, or rbac-cluster-lower-namespace.yaml";

/// How much a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Without it pods do not run.
    Required,
    /// Without it something is missing that pods can do without.
    Optional,
}

/// Something that the provider does in the lower cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// What it is.
    pub check: AccessCheck,
    /// How much it is needed.
    pub requirement: Requirement,
    /// What it is needed for.
    pub purpose: &'static str,
}

const CORE: &str = "";
const OBJECT: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
const FOLLOW: [&str; 2] = ["list", "watch"];
const CONNECT: [&str; 2] = ["get", "create"];

/// What is done in the namespaces of pods: group, resource, verbs.
const IN_NAMESPACES: [(&str, &str, &[&str], Requirement, &str); 12] = [
    (CORE, "pods", &OBJECT, Requirement::Required, "to run pods"),
    (
        CORE,
        "configmaps",
        &OBJECT,
        Requirement::Required,
        "to copy what pods refer to, and for the anchor that all hangs on",
    ),
    (CORE, "secrets", &OBJECT, Requirement::Required, "to copy what pods refer to"),
    (CORE, "serviceaccounts", &OBJECT, Requirement::Required, "to make the service accounts of pods"),
    (CORE, "persistentvolumeclaims", &OBJECT, Requirement::Required, "to copy the claims of pods"),
    (CORE, "pods/log", &["get"], Requirement::Optional, "to read logs"),
    (CORE, "pods/exec", &CONNECT, Requirement::Optional, "to run commands in containers"),
    (CORE, "pods/attach", &CONNECT, Requirement::Optional, "to attach to containers"),
    (CORE, "pods/portforward", &CONNECT, Requirement::Optional, "to forward ports"),
    (CORE, "pods/ephemeralcontainers", &["patch"], Requirement::Optional, "to add ephemeral containers"),
    (CORE, "pods/resize", &["patch"], Requirement::Optional, "to resize pods in place"),
    (CORE, "events", &FOLLOW, Requirement::Optional, "to tell above what happens to pods below"),
];

/// What is done in the cluster as a whole.
const IN_CLUSTER: [(&str, &str, &[&str], Requirement, &str); 5] = [
    (CORE, "nodes", &FOLLOW, Requirement::Optional, "to know how much the virtual node has to offer"),
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
    (
        CORE,
        "persistentvolumes",
        &["get"],
        Requirement::Optional,
        "to bind claims to the volumes that they name",
    ),
    (CORE, "nodes/proxy", &["get"], Requirement::Optional, "to measure containers exactly"),
];

/// All that the provider does in a lower cluster whose namespaces are called so.
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
        add(namespace, ("metrics.k8s.io", "pods", &["list"], Requirement::Optional, "to measure pods"));
    }
    for row in IN_CLUSTER {
        add("", row);
    }
    if matches!(namespaces, NamespaceMapping::Map(_)) {
        // Who says which namespaces there are has made them.
        add("", (CORE, "pods", &FOLLOW, Requirement::Optional, "to know what others use of the nodes"));
        add("", (CORE, "namespaces", &["get"], Requirement::Optional, "to know the cluster by its id"));
        if let Some(permission) = all.last_mut() {
            "kube-system".clone_into(&mut permission.check.name);
        }
    } else {
        add(
            "",
            (CORE, "namespaces", &["get", "create"], Requirement::Required, "to make the namespaces of pods"),
        );
    }
    all
}

/// Looks whether pods could run in the lower cluster of this configuration.
pub async fn examine(settings: &Settings) -> Vec<Finding> {
    let remedy = "give the kubeconfig of the lower cluster with --client-kubeconfig, or `kubeconfig` in the provider's configuration";
    let Some(path) = &settings.kubeconfig else {
        return vec![Finding::error("lower kubeconfig", "is not given", remedy)];
    };
    let supervisor = Supervisor::new();
    let source = Source { kubeconfig: Some(path.clone()), server: None };
    let findings = match source.connect(&supervisor, Metrics::default()).await {
        Ok(client) => {
            let mut findings = vec![Finding::ok("lower kubeconfig", path.display().to_string())];
            findings.extend(examine_cluster(&client, &settings.namespaces).await);
            findings
        }
        Err(error) => vec![Finding::error("lower kubeconfig", error.to_string(), remedy)],
    };
    supervisor.shut_down(Duration::from_secs(1)).await;
    findings
}

async fn examine_cluster(client: &Client, namespaces: &NamespaceMapping) -> Vec<Finding> {
    match version(client).await {
        Ok(finding) => {
            let mut findings = vec![finding];
            findings.extend(missing(client, permissions(namespaces)).await);
            findings
        }
        Err(error) => {
            let remedy = match error.kind {
                Kind::Unauthorized => "renew the token or the certificate in the lower kubeconfig",
                Kind::Forbidden => {
                    "bind the ClusterRoles that every cluster has for all who are known (system:basic-user, system:public-info-viewer)"
                }
                _ => "see that the address in the lower kubeconfig is permission, and reached from here",
            };
            vec![Finding::error("lower API server", format!("{}: {error}", client.server()), remedy)]
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
    minor: String,
}

async fn version(client: &Client) -> Result<Finding, Error> {
    // Whoever has no credentials that count may read the version in most clusters, and nothing else.
    AccessCheck { verb: "list".to_owned(), resource: "nodes".to_owned(), ..AccessCheck::default() }
        .allowed(client)
        .await?;
    let version: Version = client.read("version", "/version").await?;
    let found = format!("{} is {}", client.server(), version.git_version);
    let minor = version.minor.trim_end_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
    Ok(if minor < OLDEST {
        let remedy = format!("nobody has tried clusters before 1.{OLDEST}: use a newer one");
        Finding::warning("lower API server", found, remedy)
    } else {
        Finding::ok("lower API server", found)
    })
}

/// One finding for each permission that is missing.
async fn missing(client: &Client, permissions: Vec<Permission>) -> Vec<Finding> {
    let count = permissions.len();
    let asked = permissions.into_iter().map(|permission| async move {
        let answer = permission.check.allowed(client).await;
        (permission, answer)
    });
    let answers: Vec<(Permission, Result<bool, Error>)> =
        stream::iter(asked).buffered(AT_ONCE).collect().await;
    let mut findings: Vec<Finding> = Vec::new();
    for (permission, answer) in answers {
        match answer {
            Ok(true) => {}
            Ok(false) => {
                let found = format!("may not {permission} ({})", permission.purpose);
                findings.push(match permission.requirement {
                    Requirement::Required => Finding::error("lower permissions", found, ROLES),
                    Requirement::Optional => Finding::warning("lower permissions", found, ROLES),
                });
            }
            Err(error) => {
                let remedy = "ask again";
                findings.push(Finding::error("lower permissions", format!("{permission}: {error}"), remedy));
            }
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok("lower permissions", format!("all {count} are there")));
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
    fn rights_are_asked_for_where_they_are_used() {
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
    async fn a_kubeconfig_that_is_not_there_is_told_with_what_to_do() {
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
