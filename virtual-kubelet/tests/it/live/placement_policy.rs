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
    let pod = json!({
        "metadata": {"name": "web", "labels": {"virtual-pod": "true"}},
        "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "main", "image": "none"}]},
    });
    let pods: Api<Pod> = Api::namespaced(cluster.admin().unwrap(), "default");
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
}
