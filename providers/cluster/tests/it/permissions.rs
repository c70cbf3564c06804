//! The published roles grant exactly the permissions that the provider uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use vk_kube::{Client, Metrics, Objects, access::AccessCheck};
use vk_provider::finding::FindingLevel;
use vk_provider_cluster::{
    config::Settings,
    doctor::{Permission, Requirement, examine, permissions},
    names::NamespaceMapping,
};
use vk_supervisor::Supervisor;
use vk_testing::{ControlPlane, control_plane::Options, eventually, kubectl};

const ACCOUNT: &str = "system:serviceaccount:kube-system:virtual-kubelet-lower";

struct PermissionFixture {
    cluster: ControlPlane,
    kubeconfig: PathBuf,
    client: Client,
    admin: Client,
}

impl PermissionFixture {
    async fn new() -> Self {
        let cluster = ControlPlane::start(Options::default()).await.unwrap();
        let kubeconfig = cluster.data_dir().join("lower-account");
        cluster.write_kubeconfig(&kubeconfig, ACCOUNT, &["system:serviceaccounts"]).unwrap();
        let source = vk_kube::ClientOptions { kubeconfig: Some(kubeconfig.clone()), server: None };
        let client = source.connect(&Supervisor::new(), Metrics::default()).await.unwrap();
        let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
        Self { cluster, kubeconfig, client, admin }
    }

    async fn apply(&self, file: &str, namespace: Option<&str>) {
        let path = format!("{}/../../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
        let mut arguments = vec!["apply", "-f", &path];
        arguments.extend(namespace.iter().flat_map(|namespace| ["--namespace", namespace]));
        let applied = kubectl(&self.cluster, arguments).await.unwrap();
        assert!(applied.success(), "{applied:?}");
    }

    async fn findings(&self, namespaces: &NamespaceMapping) -> Vec<vk_provider::Finding> {
        let settings = Settings {
            kubeconfig: Some(self.kubeconfig.clone()),
            namespaces: namespaces.clone(),
            ..Settings::default()
        };
        examine(&settings).await
    }

    async fn check(&self, namespaces: &NamespaceMapping) {
        for permission in permissions(namespaces) {
            let allowed = permission.check.allowed(&self.client).await.unwrap();
            assert_eq!(allowed, permission.check.subresource != "proxy", "{permission}");
        }
        let findings = self.findings(namespaces).await;
        // The cluster of this test has no nodes, which is found too.
        let wrong = findings.iter().filter(|one| one.level != FindingLevel::Ok && one.what != "lower nodes");
        let wrong: Vec<String> = wrong.map(ToString::to_string).collect();
        assert!(wrong.len() == 1 && wrong[0].contains("get nodes/proxy"), "{wrong:?}");
    }
}

/// The permissions in use, in the notation of roles.
fn used<'a>(permissions: impl Iterator<Item = &'a Permission>) -> BTreeSet<String> {
    let words = permissions.filter(|permission| permission.check.subresource != "proxy").map(|permission| {
        let AccessCheck { verb, group, resource, subresource, name, .. } = &permission.check;
        let slash = if subresource.is_empty() { "" } else { "/" };
        format!("{verb} {group}/{resource}{slash}{subresource} {name}").trim_end().to_owned()
    });
    words.collect()
}

/// The permissions that a role grants, in the same notation.
fn granted(rules: Option<Vec<PolicyRule>>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for rule in rules.unwrap() {
        let names = rule.resource_names.unwrap_or_else(|| vec![String::new()]);
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for name in &names {
                    let word =
                        |verb: &String| format!("{verb} {group}/{resource} {name}").trim_end().to_owned();
                    all.extend(rule.verbs.iter().map(word));
                }
            }
        }
    }
    all
}

fn check(verb: &str, resource: &str, namespace: &str) -> AccessCheck {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    AccessCheck {
        verb: verb.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        ..AccessCheck::default()
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_lower_cluster_role_is_minimal() {
    let fixture = PermissionFixture::new().await;
    let findings = fixture.findings(&NamespaceMapping::Same).await;
    let told = findings.iter().filter(|one| one.what == "lower permissions");
    let all = permissions(&NamespaceMapping::Same);
    assert_eq!(told.clone().count(), all.len(), "one for each that is missing: {findings:?}");
    let must = all.iter().filter(|permission| permission.requirement == Requirement::Required).count();
    assert_eq!(told.clone().filter(|one| one.level == FindingLevel::Error).count(), must);
    assert!(told.clone().all(|one| one.remedy.contains("rbac-cluster-lower.yaml")), "{findings:?}");

    fixture.apply("rbac-cluster-lower.yaml", None).await;
    fixture.check(&NamespaceMapping::Same).await;
    let role = Objects::<ClusterRole>::all(fixture.admin.clone()).get("virtual-kubelet-lower").await.unwrap();
    assert_eq!(granted(role.rules), used(all.iter()), "each permission of the role is used");
    for (verb, resource) in [
        ("delete", "namespaces"),
        ("patch", "nodes"),
        ("get", "nodes/proxy"),
        ("create", "pods/eviction"),
        ("deletecollection", "pods"),
        ("update", "secrets"),
        ("create", "serviceaccounts/token"),
        ("patch", "pods/status"),
        ("delete", "persistentvolumes"),
        ("create", "events"),
    ] {
        assert!(!check(verb, resource, "").allowed(&fixture.client).await.unwrap(), "{verb} {resource}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_lower_namespace_roles_are_minimal() {
    let fixture = PermissionFixture::new().await;
    let map = BTreeMap::from([("web".to_owned(), "shop".to_owned()), ("db".to_owned(), "store".to_owned())]);
    for name in ["shop", "store"] {
        let made = kubectl(&fixture.cluster, ["create", "namespace", name]).await.unwrap();
        assert!(made.success(), "{made:?}");
        fixture.apply("rbac-cluster-lower-namespace.yaml", Some(name)).await;
    }
    let namespaces = NamespaceMapping::Map(map);
    // Pods run without any cluster-wide permission.
    for permission in
        permissions(&namespaces).iter().filter(|permission| permission.requirement == Requirement::Required)
    {
        assert!(permission.check.allowed(&fixture.client).await.unwrap(), "{permission}");
    }
    fixture.apply("rbac-cluster-lower-nodes.yaml", None).await;
    fixture.check(&namespaces).await;

    let all = permissions(&namespaces);
    let admin = || fixture.admin.clone();
    let role = Objects::<Role>::namespaced(admin(), "shop").get("virtual-kubelet-lower").await.unwrap();
    assert_eq!(
        granted(role.rules),
        used(all.iter().filter(|permission| permission.check.namespace == "shop"))
    );
    let role = Objects::<ClusterRole>::all(admin()).get("virtual-kubelet-lower-nodes").await.unwrap();
    assert_eq!(
        granted(role.rules),
        used(all.iter().filter(|permission| permission.check.namespace.is_empty()))
    );
    for (verb, resource, namespace) in [
        ("get", "secrets", ""),
        ("get", "secrets", "default"),
        ("create", "pods", "default"),
        ("create", "pods/exec", "kube-system"),
        ("create", "namespaces", ""),
        ("get", "namespaces", ""),
        ("get", "pods/log", "default"),
    ] {
        assert!(
            !check(verb, resource, namespace).allowed(&fixture.client).await.unwrap(),
            "{verb} {resource} in {namespace:?}"
        );
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn doctor_distinguishes_an_expired_token_from_an_unreachable_server() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let path = cluster.data_dir().join("expired");
    let write = |server: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{server: \"{server}\", insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: a, user: {{token: expired}}}}]\n"
        );
        fs::write(&path, text).unwrap();
    };
    let settings = Settings { kubeconfig: Some(path.clone()), ..Settings::default() };
    for (server, word) in [(cluster.url(), "renew the token"), ("https://127.0.0.1:9", "the address")] {
        write(server);
        let findings = examine(&settings).await;
        let wrong: Vec<String> =
            findings.iter().filter(|one| one.level == FindingLevel::Error).map(ToString::to_string).collect();
        assert!(wrong.len() == 1 && wrong[0].contains(word), "{word} in {wrong:?}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_upper_cluster_role_is_minimal() {
    let fixture = PermissionFixture::new().await;
    for file in ["rbac-impersonate.yaml", "rbac-cluster-upper.yaml"] {
        fixture.apply(file, None).await;
    }
    let account = fixture.cluster.data_dir().join("upper-account");
    let user = "system:serviceaccount:kube-system:virtual-kubelet";
    fixture.cluster.write_kubeconfig(&account, user, &["system:serviceaccounts"]).unwrap();
    let source = vk_kube::ClientOptions { kubeconfig: Some(account), server: None };
    let client = source.connect(&Supervisor::new(), Metrics::default()).await.unwrap();
    let system = AccessCheck { name: "kube-system".to_owned(), ..check("get", "namespaces", "") };
    let classes = AccessCheck { group: "storage.k8s.io".to_owned(), ..check("get", "storageclasses", "") };
    // The tests of the storage module use these permissions in the upper cluster.
    let needed = vec![
        system,
        check("list", "persistentvolumeclaims", ""),
        check("watch", "persistentvolumeclaims", ""),
    ];
    // A placeholder is deleted with its claim.
    let volumes = ["get", "create", "list", "delete"].map(|verb| check(verb, "persistentvolumes", ""));
    let storage: Vec<_> = volumes.into_iter().chain([classes]).collect();
    for check in &storage {
        assert!(!check.allowed(&client).await.unwrap(), "only with `storage: true`: {check:?}");
    }
    fixture.apply("rbac-cluster-storage.yaml", None).await;
    let roles = Objects::<ClusterRole>::all(fixture.admin.clone());
    for (name, needed) in [("virtual-kubelet-cluster", needed), ("virtual-kubelet-cluster-storage", storage)]
    {
        for check in &needed {
            let allowed = || async { check.allowed(&client).await.map_err(|error| error.to_string()) };
            eventually("the role is known", Duration::from_mins(1), || async {
                if allowed().await? { Ok(()) } else { Err(format!("{check:?}")) }
            })
            .await;
        }
        let permissions: Vec<Permission> = needed
            .into_iter()
            .map(|check| Permission { check, requirement: Requirement::Required, purpose: "" })
            .collect();
        assert_eq!(granted(roles.get(name).await.unwrap().rules), used(permissions.iter()));
    }
    for (verb, resource) in [
        ("get", "secrets"),
        ("get", "namespaces"),
        ("patch", "persistentvolumeclaims"),
        ("patch", "persistentvolumes"),
        ("create", "pods"),
        ("delete", "pods"),
        ("patch", "nodes"),
    ] {
        assert!(!check(verb, resource, "").allowed(&client).await.unwrap(), "{verb} {resource}");
    }
}
