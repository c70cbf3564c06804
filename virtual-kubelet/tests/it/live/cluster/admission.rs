//! The effects of lower admission on pods, and how the upper cluster shows them.

use std::sync::Arc;

use k8s_openapi::ByteString;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use vk_testing::ControlPlane;

use super::{
    cluster_pair::{ClusterPair, lower, upper},
    namespace_client::{condition, text},
};

/// A webhook that injects a container into every pod.
struct Injector {
    port: u16,
    _serving: JoinSet<()>,
}

impl Injector {
    async fn start(cluster: &ControlPlane) -> Self {
        let certificate = cluster.serving_certificate("injector", &["127.0.0.1"]).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(certificate.cert_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(certificate.key_pem.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut calls = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                // Connection errors are the problem of the API server.
                calls.spawn(async move { answer(acceptor, stream).await.ok() });
            }
        });
        Self { port, _serving: serving }
    }
}

async fn answer(acceptor: TlsAcceptor, stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body)?;
    let sidecar = json!({"name": "injected", "image": "example.com/proxy:1"});
    let patch = json!([
        {"op": "add", "path": "/spec/containers/-", "value": sidecar},
        {"op": "add", "path": "/metadata/annotations/injected", "value": "yes"},
    ]);
    let response = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
        "uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch",
        "patch": ByteString(patch.to_string().into_bytes()),
    }})
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        response.len()
    );
    stream.write_all((head + &response).as_bytes()).await?;
    stream.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_injected_container_is_not_reported() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("injected").await;
    let injector = Injector::start(pair.lower).await;
    let name = namespace.lower.namespace.clone();
    let webhook = json!({"metadata": {"name": name}, "webhooks": [{
        "name": "inject.example.com",
        "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": {"url": format!("https://127.0.0.1:{}/", injector.port),
            "caBundle": ByteString(pair.lower.ca_pem().as_bytes().to_vec())},
        "namespaceSelector": {"matchLabels": {"inject": name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }]});
    namespace.lower.create("mutatingwebhookconfigurations", &webhook).await;
    namespace.prepare_lower(&json!({"inject": name})).await;
    // The API server learns of a webhook with a delay.
    let probe = json!({"metadata": {"name": "probe", "annotations": {"a": "b"}}, "spec": {
        "schedulerName": "nobody", "containers": [{"name": "a", "image": "a"}]}});
    vk_testing::eventually("the webhook is asked", super::namespace_client::TIMEOUT, || async {
        let made = namespace.lower.create("pods", &probe).await;
        namespace.lower.delete("pods/probe", Some(0)).await;
        if made["metadata"]["annotations"]["injected"] == "yes" { Ok(()) } else { Err(made.to_string()) }
    })
    .await;

    let (upper, lower_pod) = namespace.run(&pair.pod("web")).await;
    let names = |list: &Value| -> Vec<String> {
        let all = list.as_array().cloned().unwrap_or_default();
        all.iter().map(|one| text(&one["name"]).to_owned()).collect()
    };
    assert_eq!(names(&lower_pod["spec"]["containers"]), ["main", "injected"]);
    assert_eq!(names(&lower_pod["status"]["containerStatuses"]).len(), 2);
    assert_eq!(names(&upper["status"]["containerStatuses"]), ["main"]);
    assert_eq!(condition(&upper, "Ready")["status"], "True");
    assert!(upper["metadata"]["annotations"].get("injected").is_none(), "{upper}");
    // It is neither mistaken for a change of ours nor removed by one.
    namespace.upper.patch("pods/web", &json!({"metadata": {"labels": {"edited": "yes"}}})).await;
    let edited = |pod: &Value| pod["metadata"]["labels"]["edited"] == "yes";
    let lower_pod = namespace.lower.wait_for("pods/web", "is edited", edited).await;
    assert_eq!(names(&lower_pod["spec"]["containers"]), ["main", "injected"]);
    namespace.remove("web").await;
    namespace.lower.delete(&format!("mutatingwebhookconfigurations/{name}"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn limits_set_by_the_lower_cluster_are_not_reverted() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("limits").await;
    namespace.prepare_lower(&json!({})).await;
    let range = json!({"metadata": {"name": "range"}, "spec": {"limits": [{"type": "Container",
        "default": {"cpu": "1", "memory": "64Mi"}, "defaultRequest": {"cpu": "100m", "memory": "32Mi"}, "max": {"cpu": "2"}}]}});
    namespace.lower.create("limitranges", &range).await;
    let (upper, lower_pod) = namespace.run(&pair.pod("web")).await;
    assert_eq!(lower_pod["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
    assert_eq!(upper["spec"]["containers"][0]["resources"], json!({}));
    namespace.upper.patch("pods/web", &json!({"metadata": {"labels": {"edited": "yes"}}})).await;
    let edited = |pod: &Value| pod["metadata"]["labels"]["edited"] == "yes";
    let lower_pod = namespace.lower.wait_for("pods/web", "is edited", edited).await;
    assert_eq!(lower_pod["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
    // A pod that requests too much is rejected by the lower cluster.
    let mut pod = pair.pod("large");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "3"}, "limits": {"cpu": "3"}});
    namespace.upper.create("pods", &pod).await;
    namespace.upper.wait_event("large", &["maximum cpu usage per Container is 2"]).await;
    shows(&namespace, "large", "maximum cpu usage per Container is 2").await;
    namespace.remove("large").await;
}

/// Waits until the status of a pod contains this text.
async fn shows(namespace: &super::cluster_pair::TestNamespace<'_>, pod: &str, words: &str) -> Value {
    let what = format!("shows {words:?}");
    namespace
        .upper
        .wait_for(&format!("pods/{pod}"), &what, |pod| pod["status"].to_string().contains(words))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_over_the_lower_quota_waits_and_shows_the_error() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("quota").await;
    namespace.prepare_lower(&json!({})).await;
    let quota = json!({"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}});
    namespace.lower.create("resourcequotas", &quota).await;
    namespace
        .lower
        .wait_for("resourcequotas/small", "is counted", |it| it["status"]["hard"]["pods"] == "0")
        .await;
    namespace.upper.create("pods", &pair.pod("web")).await;
    let told = namespace.upper.wait_event("web", &["exceeded quota: small"]).await;
    assert_eq!(told["type"], "Warning");
    let waits = shows(&namespace, "web", "exceeded quota: small").await;
    assert_eq!(waits["status"]["phase"], "Pending");
    // A Job's pod waits too: others leave sooner or later.
    let mut once = pair.pod("once");
    once["spec"]["restartPolicy"] = json!("Never");
    let template = json!({"spec": once["spec"]});
    let job = json!({"metadata": {"name": "work"}, "spec": {"backoffLimit": 0, "template": template}});
    namespace.upper.create("jobs", &job).await;
    let of_job =
        |pods: Vec<Value>| pods.into_iter().find(|pod| pod["metadata"]["labels"]["job-name"] == "work");
    vk_testing::eventually(
        "the pod of the job waits for quota",
        super::namespace_client::TIMEOUT,
        || async {
            let pod = of_job(namespace.upper.list("pods").await).ok_or("no pod")?;
            assert_ne!(pod["status"]["phase"], "Failed", "{}", pod["status"]);
            let reason = &pod["status"]["reason"];
            if reason == "LowerQuotaExceeded" { Ok(()) } else { Err(pod["status"].to_string()) }
        },
    )
    .await;
    namespace.lower.patch("resourcequotas/small", &json!({"spec": {"hard": {"pods": "5"}}})).await;
    namespace.upper.wait_running("web").await;
    let now = namespace.upper.get("pods/web").await;
    assert!(!now["status"].to_string().contains("exceeded quota"), "it is told no more: {}", now["status"]);
    let started = |job: &Value| job["status"]["active"] == 1 && job["status"]["failed"].is_null();
    namespace.upper.wait_for("jobs/work", "runs and never failed", started).await;
    vk_testing::eventually("the pod of the job runs", super::namespace_client::TIMEOUT, || async {
        let pod = of_job(namespace.upper.list("pods").await).ok_or("no pod")?;
        if pod["status"]["phase"] == "Running" { Ok(()) } else { Err(pod["status"].to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_rejected_by_lower_pod_security_shows_the_error() {
    let pair = ClusterPair::common().await;
    let namespace = pair.test_namespace("security").await;
    namespace.prepare_lower(&json!({"pod-security.kubernetes.io/enforce": "restricted"})).await;
    namespace.upper.create("pods", &pair.pod("careless")).await;
    namespace.upper.wait_event("careless", &["violates PodSecurity", "allowPrivilegeEscalation"]).await;
    shows(&namespace, "careless", "violates PodSecurity").await;
    let mut pod = pair.pod("careful");
    pod["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    pod["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    namespace.run(&pod).await;
    assert!(namespace.lower.find("pods/careless").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn classes_that_only_the_upper_cluster_has_do_not_block_a_pod() {
    let (upper, lower) = (upper().await, lower().await);
    let [only, both] = ["only", "both"].map(|name| format!("{name}-of-{}", std::process::id()));
    let allow = json!({"allow": {"priorityClasses": [only, both]}});
    let pair = ClusterPair::open(upper, lower, "classes", 1, allow, &[]).await;
    let namespace = pair.test_namespace("classes").await;
    let class = |name: &str, value: i32| json!({"metadata": {"name": name}, "value": value});
    for name in [&only, &both] {
        namespace.upper.create("priorityclasses", &class(name, 1000)).await;
    }
    // The same name with another value.
    namespace.lower.create("priorityclasses", &class(&both, 7)).await;
    let mut pod = pair.pod("only");
    pod["spec"]["priorityClassName"] = json!(only);
    let (_, lower_pod) = namespace.run(&pod).await;
    assert!(lower_pod["spec"].get("priorityClassName").is_none(), "{}", lower_pod["spec"]);
    let mut pod = pair.pod("both");
    pod["spec"]["priorityClassName"] = json!(both);
    let (upper, lower_pod) = namespace.run(&pod).await;
    assert_eq!(
        (&lower_pod["spec"]["priorityClassName"], &lower_pod["spec"]["priority"]),
        (&json!(both), &json!(7))
    );
    assert_eq!(upper["spec"]["priority"], 1000);
    for (client, names) in [(&namespace.upper, vec![&only, &both]), (&namespace.lower, vec![&both])] {
        for name in names {
            client.delete(&format!("priorityclasses/{name}"), None).await;
        }
    }
}
