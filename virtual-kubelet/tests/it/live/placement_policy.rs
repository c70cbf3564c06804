//! `virtual-kubelet placement print policy` and `virtual-kubelet webhook` with a real API server.

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;
use vk_testing::{ControlPlane, control_plane::Options, eventually, kubectl};

use super::{SOON, ports};
use crate::vk;

/// A pod that opted in, as the API server would create it.
async fn dry_run(cluster: &ControlPlane) -> Result<Pod, String> {
    dry_run_in(cluster, "default").await
}

async fn dry_run_in(cluster: &ControlPlane, namespace: &str) -> Result<Pod, String> {
    let pod = json!({
        "metadata": {"name": "web", "labels": {"virtual-pod": "true"}},
        "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "main", "image": "none"}]},
    });
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), namespace);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&dry_run, &pod).await.map_err(|error| error.to_string())
}

/// Waits until pods that opted in are converted.
async fn is_converted(cluster: &ControlPlane) {
    eventually("a pod that opted in is converted", SOON, || async {
        let pod = dry_run(cluster).await?;
        let annotations = pod.metadata.annotations.unwrap_or_default();
        match annotations.get("multicluster.virtual-kubelet.io/lower-nodes").map(String::as_str) {
            Some("disk=ssd") => Ok(()),
            other => Err(format!("the selector is {other:?}")),
        }
    })
    .await;
}

async fn apply(cluster: &ControlPlane, folder: &Path, manifest: &str) -> String {
    let file = folder.join("manifest.yaml");
    fs::write(&file, manifest).unwrap();
    let output = kubectl(cluster, ["apply", "--filename", file.to_str().unwrap()]).await.unwrap();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    output.stdout
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn the_printed_policy_and_the_webhook_command_convert_pods() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.admin_kubeconfig().to_str().unwrap();
    let policy = vk(&["placement", "print", "policy", "--kubeconfig", kubeconfig]).run().ok();
    let applied = apply(&cluster, folder.path(), &policy).await;
    assert_eq!(applied.lines().count(), 4, "a policy, two bindings and a ConfigMap: {applied}");
    is_converted(&cluster).await;
    // Nobody runs the controller that creates it.
    let account = ["-n", "kube-system", "create", "serviceaccount", "default"];
    kubectl(&cluster, account).await.unwrap();
    let system = dry_run_in(&cluster, "kube-system").await.unwrap();
    assert_eq!(system.metadata.annotations, None, "pods of kube-system are left alone");
    let file = folder.path().join("manifest.yaml");
    kubectl(&cluster, ["delete", "--filename", file.to_str().unwrap()]).await.unwrap();
    eventually("pods are created as they are", SOON, || async {
        let annotations = dry_run(&cluster).await?.metadata.annotations;
        if annotations.is_none() { Ok(()) } else { Err(format!("converted: {annotations:?}")) }
    })
    .await;

    let certificate = cluster.serving_certificate("placement", &["127.0.0.1"]).unwrap();
    let [cert, key, ca] =
        [("cert", &*certificate.cert_pem), ("key", &certificate.key_pem), ("ca", cluster.ca_pem())].map(
            |(name, pem)| {
                let path = folder.path().join(name);
                fs::write(&path, pem).unwrap();
                path.to_str().unwrap().to_owned()
            },
        );
    let port = ports(1).to_string();
    let mut webhook =
        vk(&["webhook", "--port", &port, "--tlscert", &cert, "--tlskey", &key, "--incluster"]).start();
    let url = format!("https://127.0.0.1:{port}");
    let older = ["--server-version", "1.33", "--webhook-url", &url, "--webhook-ca", &ca];
    let configuration = vk(&[&["placement", "print", "policy"][..], &older].concat()).run().ok();
    apply(&cluster, folder.path(), &configuration).await;
    is_converted(&cluster).await;

    let ended = webhook.stop(SOON).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("warning: --incluster does nothing: "), "{ended:?}");
    let denied =
        eventually("pods are denied", SOON, || async { dry_run(&cluster).await.err().ok_or("created") })
            .await;
    assert!(denied.contains("pods.placement.virtual-kubelet.io"), "{denied}");

    // With `--fail-open` they are created as they are while the webhook is down, and converted again when it is back.
    let open = [&["placement", "print", "policy", "--fail-open"][..], &older].concat();
    apply(&cluster, folder.path(), &vk(&open).run().ok()).await;
    eventually("pods are created as they are", SOON, || async {
        let annotations = dry_run(&cluster).await?.metadata.annotations;
        if annotations.is_none() { Ok(()) } else { Err(format!("converted: {annotations:?}")) }
    })
    .await;
    let command = ["webhook", "--port", &port, "--tlscert", &cert, "--tlskey", &key];
    let mut webhook = vk(&command).start();
    is_converted(&cluster).await;

    webhook.stop(SOON).await;
    let _webhook = vk(&[&command[..], &["--ignore-selector-keys", "disk"]].concat()).start();
    eventually("the pod tolerates virtual nodes, and its selector stays", SOON, || async {
        let pod = dry_run(&cluster).await?;
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.clone()).unwrap_or_default();
        let tolerates =
            tolerations.iter().any(|one| one.key.as_deref() == Some("virtual-kubelet.io/provider"));
        let selector = pod.spec.and_then(|spec| spec.node_selector).unwrap_or_default();
        if tolerates && selector.contains_key("disk") && pod.metadata.annotations.is_none() {
            Ok(())
        } else {
            Err(format!("{tolerations:?} {selector:?} {:?}", pod.metadata.annotations))
        }
    })
    .await;
}

/// The webhook is a part of `placement`, with a certificate that placement issues.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn a_webhook_without_files_has_a_certificate_that_the_api_server_accepts_also_from_the_next_process() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    apply(&cluster, folder.path(), &vk(&["placement", "print", "rbac", "--webhook"]).run().ok()).await;
    let token =
        kubectl(&cluster, ["-n", "kube-system", "create", "token", "virtual-kubelet-placement"]).await;
    let account = folder.path().join("account");
    cluster.write_token_kubeconfig(&account, token.unwrap().stdout.trim()).unwrap();
    let account = account.to_str().unwrap();

    let port = ports(1).to_string();
    let url = format!("https://127.0.0.1:{port}");
    let older = ["placement", "print", "policy", "--server-version", "1.33", "--webhook-url", &url];
    let printed = vk(&older).run();
    assert!(printed.stderr.contains("virtual-kubelet webhook` without --tlscert"), "{printed:?}");
    apply(&cluster, folder.path(), &printed.stdout).await;
    let denied = dry_run(&cluster).await.unwrap_err();
    assert!(denied.contains("pods.placement.virtual-kubelet.io"), "{denied}");

    let mut first =
        vk(&["webhook", "--port", &port, "--kubeconfig", account]).env("VK_METRICS_ADDR", "off").start();
    is_converted(&cluster).await;
    first.kill();
    let listen = format!("127.0.0.1:{port}");
    let flags = ["--metrics-addr", "off", "--webhook-listen", &listen, "--upper-keys", "type,disk"];
    let second = vk(&[&["placement", "--kubeconfig", account][..], &flags].concat()).start();
    eventually("the next process converts with its own settings", SOON, || async {
        let annotations = dry_run(&cluster).await?.metadata.annotations;
        if annotations.is_none() { Ok(()) } else { Err(format!("converted: {annotations:?}")) }
    })
    .await;
    let log = second.stderr();
    assert!(!log.contains("orbidden"), "{log}");
}

/// Of two processes one leads, and the API server calls the other one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn a_process_that_stands_by_serves_the_webhook_too() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    apply(&cluster, folder.path(), &vk(&["placement", "print", "rbac", "--webhook"]).run().ok()).await;
    let token =
        kubectl(&cluster, ["-n", "kube-system", "create", "token", "virtual-kubelet-placement"]).await;
    let account = folder.path().join("account");
    cluster.write_token_kubeconfig(&account, token.unwrap().stdout.trim()).unwrap();
    let account = account.to_str().unwrap();
    let start = |port: u16| {
        let listen = format!("127.0.0.1:{port}");
        vk(&["placement", "--kubeconfig", account, "--metrics-addr", "off", "--webhook-listen", &listen])
            .start()
    };
    let leads = |log: &str| log.contains("acquired lease kube-system/virtual-kubelet-placement-serving");
    let first_port = ports(2);
    let first = start(first_port);
    eventually("the first process leads", SOON, || async {
        let log = first.stderr();
        if leads(&log) { Ok(()) } else { Err(log) }
    })
    .await;
    let standby = start(first_port + 1);
    let url = format!("https://127.0.0.1:{}", first_port + 1);
    let older = ["placement", "print", "policy", "--server-version", "1.33", "--webhook-url", &url];
    apply(&cluster, folder.path(), &vk(&older).run().stdout).await;
    is_converted(&cluster).await;
    assert!(!leads(&standby.stderr()), "{}", standby.stderr());
}
