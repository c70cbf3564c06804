//! `/healthz`, `/readyz` and `/metrics`.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::json;
use vk_supervisor::Clock;
use vk_testing::{ControlPlane, eventually, kubectl};

use super::{SOON, answers, becomes_ready, leases, ports, run};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_process_is_ready_when_its_node_is_registered_and_alive_before() {
    let cluster = ControlPlane::shared().await;
    // Another process, elsewhere and alive as far as one can see, has the node.
    let lease = Lease {
        metadata: ObjectMeta { name: Some("waiting".to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some("somebody".to_owned()),
            lease_duration_seconds: Some(600),
            renew_time: Some(MicroTime(Clock::system().now())),
            ..LeaseSpec::default()
        }),
    };
    leases(cluster).create(&lease).await.unwrap();
    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let _process = run(cluster, &["--nodename", "waiting", "--metrics-addr", &admin]).start();
    answers(port, "/healthz", 200, SOON).await;
    vk_testing::eventually("the process says which node it waits for", SOON, || async {
        let (code, answer) = super::get(port, "/readyz")?;
        if code == 503 && answer.contains("waiting") { Ok(()) } else { Err(answer) }
    })
    .await;
    assert!(!super::exists(cluster, "waiting").await);

    let deleted = kubectl(cluster, ["-n", "kube-node-lease", "delete", "lease", "waiting"]).await.unwrap();
    assert!(deleted.success(), "{deleted:?}");
    answers(port, "/readyz", 200, SOON).await;
    becomes_ready(cluster, "waiting").await;
    answers(port, "/nowhere", 404, SOON).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn metrics_count_what_the_node_does_in_open_metrics() {
    let cluster = ControlPlane::shared().await;
    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let _process = run(cluster, &["--nodename", "counted", "--metrics-addr", &admin]).start();
    becomes_ready(cluster, "counted").await;
    answers(port, "/readyz", 200, SOON).await;
    let answer = answers(port, "/metrics", 200, SOON).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.to_lowercase().contains("content-type: application/openmetrics-text"), "{head}");
    for name in
        ["ping_seconds_count", "node_status_writes_total", "lease_renewals_total", "api_requests_total"]
    {
        let name = format!("virtual_kubelet_{name}");
        let samples: Vec<&str> = body.lines().filter(|line| line.starts_with(&name)).collect();
        let good = |line: &&str| name.ends_with("_count") || line.contains("result=\"ok\"");
        let counted = samples.iter().filter(|line| good(line)).any(|line| value(line) >= 1.0);
        assert!(counted, "{name} in {body}");
    }
    assert!(body.contains("virtual_kubelet_node_ready{node=\"counted\"} 1\n"), "{body}");
    well_formed(body);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_admin_port_names_nodes_and_no_pods_namespaces_or_secrets() {
    let cluster = ControlPlane::shared().await;
    let namespace = cluster.namespace("confidential").await.unwrap();
    let port = ports(1);
    let admin = format!("127.0.0.1:{port}");
    let _process = run(cluster, &["--nodename", "discreet", "--metrics-addr", &admin]).start();
    becomes_ready(cluster, "discreet").await;
    let secrets = Api::<Secret>::namespaced(cluster.admin().unwrap(), namespace.name());
    let secret = json!({"metadata": {"name": "hush-name"}, "stringData": {"hush-key": "hush-value"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let pods = Api::<Pod>::namespaced(cluster.admin().unwrap(), namespace.name());
    let reference = json!({"secretKeyRef": {"name": "hush-name", "key": "hush-key"}});
    let pod = json!({
        "metadata": {"name": "hush-pod"},
        "spec": {
            "nodeName": "discreet",
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "hush-container",
                "image": "hush-image",
                "env": [{"name": "HUSH", "valueFrom": reference}],
            }],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    eventually("the pod runs", SOON, || async {
        let list = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let phase = list.items.first().and_then(|pod| pod.status.as_ref()?.phase.clone());
        if phase.as_deref() == Some("Running") { Ok(()) } else { Err(format!("{phase:?}")) }
    })
    .await;
    for (path, code) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/", 404),
        ("/pods", 404),
        ("/configz", 404),
    ] {
        let answer = answers(port, path, code, SOON).await;
        for word in ["hush", "confidential"] {
            assert!(!answer.to_lowercase().contains(word), "{path}: {word} in {answer}");
        }
    }
    // What a metric is about: a new label has to be thought about.
    let body = answers(port, "/metrics", 200, SOON).await;
    let labels: BTreeSet<&str> = body
        .lines()
        .filter_map(|line| line.split_once('{')?.1.split_once('}'))
        .flat_map(|(labels, _)| labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)))
        .collect();
    let harmless = ["code", "kind", "le", "node", "purpose", "resource", "result", "route", "verb"];
    let other: Vec<_> = labels.into_iter().filter(|label| !harmless.contains(label)).collect();
    assert!(other.is_empty(), "{other:?}");
}

fn value(sample: &str) -> f64 {
    sample.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{sample:?} has no value"))
}

/// The rules of OpenMetrics that are easily broken: an end mark, a type before the samples of a family, no sample twice.
fn well_formed(body: &str) {
    assert!(body.ends_with("\n# EOF\n"), "{body}");
    assert_eq!(body.matches("# EOF").count(), 1);
    let (mut family, mut seen) = (String::new(), std::collections::HashSet::new());
    for line in body.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            let [kind, name, _] = words.as_slice() else { panic!("{line:?}") };
            assert!(["HELP", "TYPE", "UNIT"].contains(kind), "{line:?}");
            (*name).clone_into(&mut family);
        } else {
            assert!(!family.is_empty() && line.starts_with(&family), "{line:?} is not of family {family}");
            let (sample, _) = line.rsplit_once(' ').unwrap();
            assert!(seen.insert(sample), "{sample} twice");
            value(line);
        }
    }
}
