//! The published RBAC roles are sufficient and minimal.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    rbac::v1::{ClusterRole, Role},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_kube::{Client, Metrics, Objects, Selector, access::AccessCheck};
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually, kubectl,
};

use super::{Process, SOON, becomes_ready, exists, ports, run_as};
use crate::vk;

pub(super) const ACCOUNT: &str = "system:serviceaccount:kube-system:virtual-kubelet";

/// An API server that keeps an audit log and streams no listings: those that do not are to be served too.
async fn cluster() -> ControlPlane {
    let options = Options {
        audit_policy: Some(AUDIT_METADATA.to_owned()),
        extra_api_server_args: vec!["--feature-gates=WatchList=false".to_owned()],
        ..Options::default()
    };
    ControlPlane::start(options).await.unwrap()
}

pub(super) async fn apply(cluster: &ControlPlane, file: &str) {
    let path = format!("{}/../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    let applied = kubectl(cluster, ["apply", "-f", &path]).await.unwrap();
    assert!(applied.success(), "{applied:?}");
}

/// The account's way in, as the controller manager's token would give it.
fn account(cluster: &ControlPlane, folder: &Path) -> PathBuf {
    let path = folder.join("kubeconfig");
    cluster.write_kubeconfig(&path, ACCOUNT, &["system:serviceaccounts"]).unwrap();
    path
}

fn start(cluster: &ControlPlane, folder: &Path, nodes: &str, flags: &[&str]) -> Process {
    let config = folder.join("vk.yaml");
    fs::write(
        &config,
        format!("nodes: [{{count: 2, namePattern: '{nodes}-{{}}', portBase: {}}}]\n", ports(2)),
    )
    .unwrap();
    let path = account(cluster, folder);
    let mut all =
        vec!["--config", config.to_str().unwrap(), "--lease-duration", "4s", "--status-interval", "1s"];
    all.extend(flags);
    run_as(&path, &all).start()
}

/// Every grant of the base roles, as `verb group/resource`.
async fn granted(cluster: &ControlPlane) -> BTreeSet<String> {
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let role = Objects::<ClusterRole>::all(admin.clone()).get("virtual-kubelet").await.unwrap();
    let leases = Objects::<Role>::namespaced(admin, "kube-node-lease").get("virtual-kubelet").await.unwrap();
    let rules = role.rules.into_iter().chain(leases.rules).flatten();
    let mut all = BTreeSet::new();
    for rule in rules {
        for (group, resource) in rule
            .api_groups
            .iter()
            .flatten()
            .flat_map(|group| rule.resources.iter().flatten().map(move |resource| (group, resource)))
        {
            all.extend(rule.verbs.iter().map(|verb| format!("{verb} {group}/{resource}")));
        }
    }
    all
}

/// What the account asked for, by the audit log, and how it was answered last.
pub(super) fn asked(cluster: &ControlPlane, account: &str) -> BTreeMap<String, u64> {
    let log = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries
        .filter(|entry| entry["user"]["username"] == account)
        .map(|entry| {
            let object = &entry["objectRef"];
            let text = |key: &str| object[key].as_str().unwrap_or_default();
            let slash = if text("subresource").is_empty() { "" } else { "/" };
            let resource = format!("{}/{}{slash}{}", text("apiGroup"), text("resource"), text("subresource"));
            let call = format!("{} {resource}", entry["verb"].as_str().unwrap());
            (call, entry["responseStatus"]["code"].as_u64().unwrap_or_default())
        })
        .collect()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_published_role_is_enough_for_several_nodes_with_pods_and_every_right_in_it_is_used() {
    let cluster = &cluster().await;
    apply(cluster, "rbac.yaml").await;
    let folder = TempDir::new().unwrap();
    // What the kubelet API needs beside has a role of its own.
    let authority = folder.path().join("clients.crt");
    fs::write(&authority, cluster.ca_pem()).unwrap();
    let flags = ["--rotate-server-certificates=false", "--client-verify-ca", authority.to_str().unwrap()];
    let mut process = start(cluster, folder.path(), "role", &flags);
    for name in ["role-0", "role-1"] {
        becomes_ready(cluster, name).await;
    }
    let deleted = kubectl(cluster, ["delete", "node", "role-1"]).await.unwrap();
    assert!(deleted.success(), "{deleted:?}");
    becomes_ready(cluster, "role-1").await;

    let namespace = cluster.namespace("role").await.unwrap();
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let pods: Objects<Pod> = Objects::namespaced(admin, namespace.name());
    let bind = async |name: &str, edit: Value| {
        let mut spec = json!({
            "nodeName": "role-0", "automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "i"}],
        });
        spec.as_object_mut().unwrap().extend(edit.as_object().unwrap().clone());
        pods.create(&serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
            .await
            .unwrap()
    };
    let pod = bind("guest", json!({})).await;
    // The node is read anew before a pod is refused for where it wants to be.
    bind("elsewhere", json!({"nodeSelector": {"no": "where"}})).await;
    let phase = async |name: &str, wanted: &str| {
        eventually(&format!("{name} is {wanted}"), SOON, || async {
            let pod = json!(pods.get(name).await.map_err(|error| error.to_string())?);
            if pod["status"]["phase"] == wanted { Ok(()) } else { Err(pod["status"].to_string()) }
        })
        .await;
    };
    phase("guest", "Running").await;
    phase("elsewhere", "Failed").await;
    pods.delete("guest", &pod.metadata.uid.unwrap()).await.unwrap();
    eventually("the pod is gone", SOON, || async {
        let left = pods.list(&Selector::default()).await.map_err(|error| error.to_string())?.objects.len();
        if left == 1 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    assert_eq!(process.stop(Duration::from_secs(10)).await.code, 0);

    let (granted, asked) = (granted(cluster).await, asked(cluster, ACCOUNT));
    let forbidden: Vec<_> = asked.iter().filter(|(_, code)| **code == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
    // Seldom needed: what the watch missed and what a backend has left is read live, an event that comes again is counted on
    // the one that is there, Services are followed when a container asks for its variables, and the kubelet API asks when somebody calls, and for a certificate by one way or another.
    let seldom = [
        "get /pods",
        "patch events.k8s.io/events",
        "list /services",
        "watch /services",
        "create authentication.k8s.io/tokenreviews",
        "create authorization.k8s.io/subjectaccessreviews",
        "create certificates.k8s.io/certificatesigningrequests",
        "get certificates.k8s.io/certificatesigningrequests",
        "list certificates.k8s.io/certificatesigningrequests",
        "watch certificates.k8s.io/certificatesigningrequests",
    ]
    .map(str::to_owned);
    let unused: BTreeSet<_> = granted.iter().filter(|right| !asked.contains_key(*right)).cloned().collect();
    assert!(unused.is_subset(&seldom.into()), "granted and not used: {unused:?}");
    // What everybody may, and what a Role of the cluster's own gives.
    let others = [
        "create authentication.k8s.io/selfsubjectreviews",
        "create authorization.k8s.io/selfsubjectaccessreviews",
        "get /configmaps",
        // The version, which is no object.
        "get /",
    ];
    let beyond: Vec<_> =
        asked.keys().filter(|call| !granted.contains(*call) && !others.contains(&call.as_str())).collect();
    assert!(beyond.is_empty(), "used and not granted: {beyond:?}");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn who_may_not_delete_nodes_is_told_at_the_start_and_not_at_the_end() {
    let cluster = &cluster().await;
    apply(cluster, "rbac.yaml").await;
    let folder = TempDir::new().unwrap();
    let flags = ["--shutdown-node", "delete"];
    let outcome = start(cluster, folder.path(), "brief", &flags).end(SOON).await;
    outcome.failed(
        2,
        &["shutdown.node:", ACCOUNT, "may not delete", "deploy/rbac-delete-nodes.yaml", "`leave`"],
    );
    assert!(!exists(cluster, "brief-0").await);

    apply(cluster, "rbac-delete-nodes.yaml").await;
    let mut process = start(cluster, folder.path(), "brief", &flags);
    for name in ["brief-0", "brief-1"] {
        becomes_ready(cluster, name).await;
    }
    assert_eq!(process.stop(SOON).await.code, 0);
    assert!(!exists(cluster, "brief-0").await && !exists(cluster, "brief-1").await);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn nodes_are_impersonated_when_the_role_names_them_and_whoever_insists_is_told_when_not() {
    let cluster = &cluster().await;
    apply(cluster, "rbac.yaml").await;
    let folder = TempDir::new().unwrap();
    let insisting = || start(cluster, folder.path(), "mask", &["--impersonate-nodes", "on"]);
    let outcome = insisting().end(SOON).await;
    outcome
        .failed(2, &["impersonateNodes:", ACCOUNT, "node mask-0", "deploy/rbac-impersonate.yaml", "`auto`"]);
    assert!(!exists(cluster, "mask-0").await);
    let says = async |process: &Process, words: &str| {
        eventually(&format!("the process says {words:?}"), SOON, || async {
            let stderr = process.stderr();
            if stderr.contains(words) { Ok(()) } else { Err(stderr) }
        })
        .await;
    };
    let mut process = start(cluster, folder.path(), "mask", &[]);
    says(&process, "not permitted to impersonate all nodes").await;
    process.stop(SOON).await;

    // As published but for the names, which everybody writes for himself.
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/rbac-impersonate.yaml")).unwrap();
    let names = "system:node:mask-0\n  - system:node:mask-1\n";
    let text = text.replace("system:node:virtual-kubelet\n", names);
    let manifest = folder.path().join("rbac-impersonate.yaml");
    fs::write(&manifest, text).unwrap();
    let applied = kubectl(cluster, ["apply", "-f", manifest.to_str().unwrap()]).await.unwrap();
    assert!(applied.success(), "{applied:?}");
    let mut process = insisting();
    says(&process, "by impersonating the nodes").await;
    becomes_ready(cluster, "mask-0").await;
    process.stop(SOON).await;
    let mut process = start(cluster, folder.path(), "mask", &["--impersonate-nodes", "off"]);
    becomes_ready(cluster, "mask-1").await;
    process.stop(SOON).await;
    assert!(
        !process.stderr().contains("impersonate") && !process.stderr().contains("by impersonating the nodes")
    );
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_published_roles_allow_what_the_kubelet_api_and_references_need() {
    let cluster = ControlPlane::shared().await;
    let client =
        Client::fixed(cluster.client_for(ACCOUNT, &["system:serviceaccounts"]).unwrap(), Metrics::default());
    let deed = |verb: &str, group: &str, resource: &str, namespace: &str, name: &str| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        AccessCheck {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    };
    let authority = ("kube-system", "extension-apiserver-authentication");
    let table = [
        (
            "rbac.yaml",
            vec![
                deed("create", "authentication.k8s.io", "tokenreviews", "", ""),
                deed("list", "", "services", "", ""),
                deed("create", "authorization.k8s.io", "subjectaccessreviews", "", ""),
                deed("get", "", "configmaps", authority.0, authority.1),
                deed("create", "certificates.k8s.io", "certificatesigningrequests", "", ""),
                deed("watch", "certificates.k8s.io", "certificatesigningrequests", "", ""),
            ],
        ),
        (
            "rbac-references.yaml",
            vec![
                deed("watch", "", "secrets", "any", "one"),
                deed("watch", "", "configmaps", "any", "one"),
                deed("create", "", "serviceaccounts/token", "any", "one"),
                deed("get", "", "persistentvolumeclaims", "any", "one"),
                deed("get", "", "persistentvolumes", "", "one"),
                deed("get", "node.k8s.io", "runtimeclasses", "", "one"),
                deed("watch", "certificates.k8s.io", "clustertrustbundles", "", ""),
            ],
        ),
    ];
    for (file, deeds) in table {
        for deed in &deeds {
            assert!(!deed.allowed(&client).await.unwrap(), "{deed:?} before {file}");
        }
        apply(cluster, file).await;
        for deed in &deeds {
            eventually(&format!("{deed:?} after {file}"), SOON, || async {
                let allowed = deed.allowed(&client).await.map_err(|error| error.to_string())?;
                if allowed { Ok(()) } else { Err("no".to_owned()) }
            })
            .await;
        }
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_published_bindings_are_enough_to_bootstrap() {
    let cluster = &ControlPlane::start(Options::with_signing()).await.unwrap();
    apply(cluster, "rbac-bootstrap.yaml").await;
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
    });
    let secrets: Objects<Secret> = Objects::namespaced(admin, "kube-system");
    secrets.create(&serde_json::from_value(secret).unwrap()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let bootstrap = folder.path().join("bootstrap.kubeconfig");
    cluster.write_token_kubeconfig(&bootstrap, "abcdef.0123456789abcdef").unwrap();
    // The API server learns of a token a moment later.
    let whoami = ["auth", "whoami", "--kubeconfig", bootstrap.to_str().unwrap()];
    eventually("the token is known", SOON, || async {
        let asked = kubectl(cluster, whoami).await.unwrap();
        if asked.success() { Ok(()) } else { Err(asked.stderr) }
    })
    .await;
    let port = ports(1).to_string();
    let mut arguments = vec!["run", "--provider", "mock", "--metrics-addr", "off", "--port", &port];
    arguments.extend(["--nodename", "published", "--bootstrap-kubeconfig", bootstrap.to_str().unwrap()]);
    arguments.extend(["--state-dir", folder.path().to_str().unwrap()]);
    let _process = vk(&arguments).start();
    becomes_ready(cluster, "published").await;
}
