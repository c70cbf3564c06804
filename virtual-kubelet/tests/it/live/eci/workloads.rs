//! Workloads on container groups.

use serde_json::json;
use vk_testing::{ControlPlane, eventually};

use super::{EciNode, LATER};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn a_deployment_and_a_job_run_on_container_groups() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let node = EciNode::start(cluster, "workloads").await;
    let mut template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": node.spec("echo up; sleep 3600")});
    node.apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    }))
    .await;
    node.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;
    node.agrees().await;
    let pods = node.get("pods").await;
    for pod in pods["items"].as_array().unwrap() {
        let annotations = &pod["metadata"]["annotations"];
        assert!(annotations["virtual-kubelet.io/group"].as_str().unwrap().starts_with("eci-"), "{pod:#}");
        assert!(annotations["virtual-kubelet.io/size"].is_string(), "{annotations}");
        assert!(annotations["virtual-kubelet.io/price"].as_str().unwrap().contains("USD"), "{annotations}");
        assert!(pod["status"]["podIP"].as_str().unwrap().starts_with("192.168."), "{pod:#}");
    }
    template["spec"] = node.spec("echo six times seven is $((6 * 7)); exit $CODE");
    template["spec"]["restartPolicy"] = "Never".into();
    for (name, code) in [("good", "0"), ("bad", "3")] {
        template["spec"]["containers"][0]["env"] = json!([{"name": "CODE", "value": code}]);
        node.apply(&json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {"spec": template["spec"]}},
        }))
        .await;
    }
    node.kubectl(&["wait", "--for=condition=Complete", "job/good", "--timeout=60s"]).await;
    node.kubectl(&["wait", "--for=condition=Failed", "job/bad", "--timeout=60s"]).await;
    assert_eq!(node.kubectl(&["logs", "job/good"]).await, "six times seven is 42\n");
    let code = "jsonpath={.items[*].status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(node.kubectl(&["get", "pods", "-l", "job-name=bad", "-o", code]).await, "3");
    node.kubectl(&["scale", "deployment/web", "--replicas=1"]).await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn a_pod_with_everything_has_it_all() {
    let node = EciNode::start(ControlPlane::shared().await, "everything").await;
    node.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "page"}, "data": {"index.html": "hello"}, "binaryData": {"bytes": "AAECAw=="}})).await;
    node.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"password": "open-sesame"}})).await;
    let mut pod =
        // It stays until its log was read.
        node.pod("all", "cat /scratch/from-init; trap 'cat /scratch/stopped; sleep 6; exit 0' TERM; while :; do sleep 0.1; done");
    let container = &mut pod["spec"]["containers"][0];
    container["env"] = json!([
        {"name": "PLAIN", "value": "plain"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "key", "key": "password"}}},
    ]);
    container["volumeMounts"] = json!([
        {"name": "page", "mountPath": "/page"},
        {"name": "key", "mountPath": "/key"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "labels", "mountPath": "/labels"},
        {"name": "token", "mountPath": "/token"},
    ]);
    container["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/scratch/started"]}, "periodSeconds": 1});
    container["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    container["lifecycle"] = json!({
        "postStart": {"exec": {"command": ["touch", "/scratch/started"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo preStop was here > /scratch/stopped"]}},
    });
    pod["spec"]["initContainers"] = json!([{
        "name": "prepare", "image": "busybox:1", "command": ["sh", "-c", "echo prepared > /scratch/from-init"],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }]);
    pod["spec"]["volumes"] = json!([
        {"name": "page", "configMap": {"name": "page", "defaultMode": 0o440}},
        {"name": "key", "secret": {"secretName": "key", "items": [{"key": "password", "path": "deep/password", "mode": 0o400}]}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "labels", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "for-vault", "audience": "vault", "expirationSeconds": 3600}}]}},
    ]);
    pod["spec"]["serviceAccountName"] = "runner".into();
    pod["spec"]["terminationGracePeriodSeconds"] = 20.into();
    node.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "runner"}})).await;
    node.apply(&pod).await;
    node.ready("all").await;
    let sh = async |script: &str| node.kubectl(&["exec", "all", "--", "sh", "-c", script]).await;
    let status = node.get("pod/all").await["status"].clone();
    assert_eq!(sh("echo $PLAIN $NAME $PASSWORD").await, "plain all open-sesame\n");
    assert_eq!(sh("echo $IP").await.trim(), status["podIP"]);
    assert_eq!(sh("cat /page/index.html /key/deep/password").await, "helloopen-sesame");
    assert_eq!(
        sh("od -An -tx1 /page/bytes; stat -c %a /page/index.html /key/deep/password").await,
        " 00 01 02 03\n440\n400\n"
    );
    assert!(sh("cat /labels/labels").await.contains("app=\"all\""));
    let token = sh("cat /token/for-vault").await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": ["vault"]}});
    let review = node.try_kubectl(&["create", "-f", "-", "-o", "json"], &review.to_string()).await;
    let review: serde_json::Value = serde_json::from_str(&review.stdout).unwrap();
    let account = format!("system:serviceaccount:{}:runner", node.namespace.name());
    assert_eq!(review["status"]["user"]["username"], account.as_str(), "{review:#}");
    assert_eq!(node.kubectl(&["logs", "all"]).await, "prepared\n");
    assert_eq!(status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 0, "{status:#}");
    assert_eq!(status["qosClass"], "Burstable");
    let events = eventually("the cloud's events are the pod's", LATER, || async {
        let events = node.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"]).await;
        if events.contains("Pulled") && events.contains("Started") { Ok(events) } else { Err(events) }
    })
    .await;
    assert!(!events.contains("open-sesame"));
    let journal = serde_json::to_string(&node.emulator.journal()).unwrap();
    assert!(
        !journal.contains("open-sesame") && !journal.contains("b3Blbi1zZXNhbWU"),
        "the journal is masked"
    );
    assert!(!journal.contains(token.trim()), "the journal is masked");
    node.kubectl(&["delete", "pod/all", "--wait=false"]).await;
    eventually("preStop has run before the container was told to stop", LATER, || async {
        let output = node.try_kubectl(&["logs", "all"], "").await;
        if output.stdout == "prepared\npreStop was here\n" { Ok(()) } else { Err(format!("{output:?}")) }
    })
    .await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn a_pod_that_cannot_run_is_refused_without_a_call() {
    let node = EciNode::start(ControlPlane::shared().await, "refused").await;
    let mut pod = node.pod("host", "sleep 3600");
    pod["spec"]["volumes"] = json!([{"name": "root", "hostPath": {"path": "/"}}]);
    pod["spec"]["hostNetwork"] = true.into();
    node.apply(&pod).await;
    let message = eventually("the pod has failed", LATER, || async {
        let pod = node.get("pod/host").await;
        if pod["status"]["phase"] == "Failed" {
            Ok(pod["status"]["message"].to_string())
        } else {
            Err(pod["status"].to_string())
        }
    })
    .await;
    assert!(message.contains("hostPath") && message.contains("hostNetwork"), "all reasons: {message}");
    assert!(!node.emulator.calls().contains_key("CreateContainerGroup"), "{:?}", node.emulator.calls());
    node.close().await;
}
