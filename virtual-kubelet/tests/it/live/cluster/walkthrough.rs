//! The walkthrough of the guide, step by step: a lower node with real containers, an upper pod with a ConfigMap, a Secret and a volume,
//! and kubectl through both API servers.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use vk_testing::{
    ControlPlane, eventually,
    host::{BareHost, Image},
};

use super::{
    super::{SOON, becomes_ready, container_node::ContainerNode, local, run_as},
    cluster_pair::{ORIGIN, TAINT, approve, lower, upper},
    namespace_client::{NamespaceClient, TIMEOUT, text},
};
use crate::network_cleanup::NetworkCleanup;

const NODE: &str = "vk-node";
/// The lower node that has the lower volume.
const LOWER_NODE: &str = "archcnstcm67370";
/// The image, which is built here and not pulled.
const IMAGE: &str = "busybox:1.27";

/// The manifests for the upper cluster, with a directory of the test for the volume. The shell writes a line first, so that there is a
/// log.
fn manifests(folder: &str, namespace: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: ConfigMap
metadata:
  name: myconfigmap
data:
  username: vk-demo
---
apiVersion: v1
kind: Secret
metadata:
  name: mysecret
type: Opaque
data:
  USER_NAME: YWRtaW4=
---
{volume}
---
kind: PersistentVolumeClaim
apiVersion: v1
metadata:
  name: vk-demo
  labels:
    app: nginx
spec:
  storageClassName: ""
  accessModes:
    - ReadWriteOnce
  resources:
    requests:
      storage: 50Mi
---
apiVersion: v1
kind: Pod
metadata:
  name: vk-demo
spec:
  automountServiceAccountToken: false
  containers:
  - name: busybox
    image: {IMAGE}
    imagePullPolicy: IfNotPresent
    command: ["/bin/sh", "-c", "echo started; echo kept > /datadir/file; tail -f /dev/null"]
    volumeMounts:
    - name: foo
      mountPath: "/etc/foo"
      readOnly: true
    - name: bar
      mountPath: "/etc/bar"
      readOnly: true
    - mountPath: /datadir
      name: local
  nodeSelector:
    type: virtual-kubelet
  tolerations:
  - key: "virtual-kubelet.io/provider"
    operator: "Exists"
    effect: "NoSchedule"
  volumes:
  - name: foo
    configMap:
      name: myconfigmap
  - name: bar
    secret:
      secretName: mysecret
      optional: false
  - name: local
    persistentVolumeClaim:
      claimName: vk-demo
"#,
        volume = volume(folder, NODE, namespace),
    )
}

/// A volume for the claim of this namespace: claims of other tests must not get it.
fn volume(folder: &str, node: &str, namespace: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: PersistentVolume
metadata:
  name: vk-demo
spec:
  capacity:
    storage: 100Gi
  volumeMode: Filesystem
  accessModes:
  - ReadWriteOnce
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {{namespace: {namespace}, name: vk-demo}}
  local:
    path: {folder}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - key: kubernetes.io/hostname
          operator: In
          values:
          - {node}
"#
    )
}

/// A lower node with real containers.
async fn lower_node(cluster: &'static ControlPlane) -> ContainerNode<BareHost> {
    let (host, config) = local::host(&[Image::standard().remove(0).named(IMAGE)]).await;
    ContainerNode::start_at(cluster, host, "local", config, LOWER_NODE, &["--disable-taint"]).await
}

async fn apply(client: &NamespaceClient<'_>, folder: &Path, manifests: &str) {
    let path = folder.join("manifests.yaml");
    fs::write(&path, manifests).unwrap();
    client.kubectl(&["apply", "-f", path.to_str().unwrap()]).await;
}

/// The columns of a line of kubectl output.
fn columns(table: &str, first: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.starts_with(first));
    line.unwrap_or_else(|| panic!("no {first} in {table}")).split_whitespace().map(str::to_owned).collect()
}

/// Runs kubectl through both API servers, as soon as the upper one trusts the certificate of the node.
async fn through(client: &NamespaceClient<'_>, words: &[&str]) -> String {
    eventually(&format!("kubectl {words:?} is answered"), TIMEOUT, || async {
        let output = client.try_kubectl(words).await;
        if output.success() { Ok(output.stdout) } else { Err(output.stderr) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane and root: make test"]
async fn the_walkthrough_works_from_node_to_volume() {
    let (upper, lower) = (upper().await, lower().await);
    let place = lower_node(lower).await;
    let _network = NetworkCleanup(place.folder().join("state").join(LOWER_NODE).join("local/network"));
    let folder = place.folder().to_owned();
    let example = folder.join("example");
    fs::create_dir_all(&example).unwrap();
    let example = example.to_str().unwrap();

    // The command line of the walkthrough, without anything about certificates.
    let config = folder.join("cluster.json");
    // A node of `local` is a machine: it counts.
    let nodes = json!({"nodeSelector": {"kubernetes.io/hostname": LOWER_NODE}});
    fs::write(&config, nodes.to_string()).unwrap();
    let lower_config = lower.admin_kubeconfig().to_str().unwrap();
    let flags = [
        "--provider",
        "cluster",
        "--nodename",
        NODE,
        "--client-kubeconfig",
        lower_config,
        "--provider-config",
        config.to_str().unwrap(),
    ];
    let mut process = run_as(upper.admin_kubeconfig(), &flags).start();
    let node = becomes_ready(upper, NODE).await;

    let namespace = upper.namespace("demo").await.unwrap().name().to_owned();
    let (above, below) = (NamespaceClient::new(upper, &namespace), NamespaceClient::new(lower, &namespace));
    // The node.
    let shown = columns(&above.kubectl(&["get", "node", NODE]).await, NODE);
    let version = below.kubectl(&["version", "--output=json"]).await;
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!(shown[1..3], ["Ready", "agent"], "{shown:?}");
    assert_eq!(json!(shown[4]), version["serverVersion"]["gitVersion"]);
    assert_eq!(node["metadata"]["labels"]["type"], "virtual-kubelet");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    let taints: Vec<&str> =
        node["spec"]["taints"].as_array().unwrap().iter().map(|taint| text(&taint["key"])).collect();
    assert!(taints.contains(&TAINT), "{taints:?}");

    // The upper objects, and what has to exist in the lower cluster.
    apply(&below, &folder, &volume(example, LOWER_NODE, &namespace)).await;
    apply(&above, &folder, &manifests(example, &namespace)).await;
    let pod = above.wait_running("vk-demo").await;
    let lower_pod = below.wait_running("vk-demo").await;
    assert_eq!(pod["spec"]["nodeName"], NODE);
    assert_eq!(lower_pod["spec"]["nodeName"], LOWER_NODE);
    assert!(lower_pod["spec"]["nodeSelector"].get("type").is_none(), "{}", lower_pod["spec"]);
    let tolerations = lower_pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    assert!(tolerations.iter().all(|toleration| toleration["key"] != TAINT), "{tolerations:?}");
    assert_eq!(below.get("configmaps/myconfigmap").await["data"], json!({"username": "vk-demo"}));
    let secret = below.get("secrets/mysecret").await;
    assert_eq!((&secret["type"], &secret["data"]), (&json!("Opaque"), &json!({"USER_NAME": "YWRtaW4="})));
    for client in [&above, &below] {
        let claim = columns(&client.kubectl(&["get", "pvc"]).await, "vk-demo");
        assert_eq!(claim[1..5], ["Bound", "vk-demo", "100Gi", "RWO"], "{claim:?}");
    }

    // The output of kubectl get.
    let shown = columns(&above.kubectl(&["get", "pod", "--output=wide"]).await, "vk-demo");
    let shown_below = columns(&below.kubectl(&["get", "pod", "--output=wide"]).await, "vk-demo");
    assert_eq!(shown[1..4], ["1/1", "Running", "0"], "{shown:?}");
    assert_eq!((&shown[6], shown_below[6].as_str()), (&NODE.to_owned(), LOWER_NODE));
    assert_eq!(shown[5], shown_below[5], "the same address on both sides");
    assert!(shown[5].parse::<std::net::IpAddr>().is_ok(), "{shown:?}");

    // Logs and exec through both API servers.
    approve(upper, NODE).await;
    assert_eq!(through(&above, &["logs", "vk-demo"]).await, "started\n");
    assert_eq!(through(&above, &["exec", "vk-demo", "--", "cat", "/etc/foo/username"]).await, "vk-demo");
    assert_eq!(through(&above, &["exec", "vk-demo", "--", "cat", "/etc/bar/USER_NAME"]).await, "admin");
    assert_eq!(fs::read_to_string(format!("{example}/file")).unwrap(), "kept\n");

    // An edit reaches the copy, and then the file in the container.
    above.patch("configmaps/myconfigmap", &json!({"data": {"username": "edited"}})).await;
    below.wait_for("configmaps/myconfigmap", "is edited", |map| map["data"]["username"] == "edited").await;
    eventually("the file in the container is edited", TIMEOUT, || async {
        let found = through(&above, &["exec", "vk-demo", "--", "cat", "/etc/foo/username"]).await;
        if found == "edited" { Ok(()) } else { Err(found) }
    })
    .await;
    let updates: i64 = above
        .events("vk-demo")
        .await
        .iter()
        .filter(|event| text(&event["reason"]).starts_with("ProviderUpdate"))
        .map(|event| event["count"].as_i64().or_else(|| event["series"]["count"].as_i64()).unwrap_or(1))
        .sum();
    assert!(updates <= 1, "{updates} updates of a pod that nobody changed");

    // Deletion.
    above.kubectl(&["delete", "pod", "vk-demo", "--grace-period=2", "--timeout=60s"]).await;
    // The upper pod leaves when nothing of it runs; the lower object may take a moment longer.
    if let Some(lower) = below.find("pods/vk-demo").await {
        let statuses = lower["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        assert!(statuses.iter().all(|one| one["state"].get("terminated").is_some()), "{lower}");
    }
    below.wait_deleted("pods/vk-demo").await;
    below.wait_deleted("configmaps/myconfigmap").await;
    below.wait_deleted("secrets/mysecret").await;
    for (client, name) in [(&above, "above"), (&below, "below")] {
        for what in ["persistentvolumeclaims/vk-demo", "persistentvolumes/vk-demo"] {
            let there = client.get(what).await;
            assert!(there["metadata"].get("deletionTimestamp").is_none(), "{what} {name}: {there}");
        }
    }
    assert_eq!(below.get("persistentvolumes/vk-demo").await["metadata"]["labels"].get(ORIGIN), None);
    let before = below.get("persistentvolumes/vk-demo").await;
    above.delete("persistentvolumeclaims/vk-demo", None).await;
    above.wait_deleted("persistentvolumeclaims/vk-demo").await;
    // The lower claim is deleted with the upper one. The volume belongs to the lower cluster and stays.
    below.wait_deleted("persistentvolumeclaims/vk-demo").await;
    above.delete("persistentvolumes/vk-demo", None).await;
    above.wait_deleted("persistentvolumes/vk-demo").await;
    let stopped = process.stop(SOON + Duration::from_secs(30)).await;
    assert_eq!(stopped.code, 0, "{stopped:#?}");
    let after = below.get("persistentvolumes/vk-demo").await;
    assert_eq!(
        (&after["metadata"]["uid"], &after["spec"]["local"]),
        (&before["metadata"]["uid"], &before["spec"]["local"])
    );
    assert!(after["metadata"].get("deletionTimestamp").is_none(), "{after}");
    assert_eq!(fs::read_to_string(format!("{example}/file")).unwrap(), "kept\n");
}
