//! Effects of the lower cluster's admission on pods, and how they appear in the upper cluster.

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
    cluster_namespace::{condition, text},
    cluster_pair::ClusterPair,
};

/// A webhook that puts a container beside those of every pod.
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
                // A caller that goes away is the API server's business.
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
async fn a_container_that_a_webhook_below_injects_stays_below() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("injected").await;
    let injector = Injector::start(pair.lower).await;
    let name = namespaces.below.namespace.clone();
    let webhook = json!({"metadata": {"name": name}, "webhooks": [{
        "name": "inject.example.com",
        "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": {"url": format!("https://127.0.0.1:{}/", injector.port),
            "caBundle": ByteString(pair.lower.ca_pem().as_bytes().to_vec())},
        "namespaceSelector": {"matchLabels": {"inject": name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }]});
    namespaces.below.create("mutatingwebhookconfigurations", &webhook).await;
    namespaces.prepare_below(&json!({"inject": name})).await;
    // The API server hears of a webhook a moment after it was made.
    let probe = json!({"metadata": {"name": "probe", "annotations": {"a": "b"}}, "spec": {
        "schedulerName": "nobody", "containers": [{"name": "a", "image": "a"}]}});
    vk_testing::eventually("the webhook is asked", super::cluster_namespace::PATIENCE, || async {
        let made = namespaces.below.create("pods", &probe).await;
        namespaces.below.delete("pods/probe", Some(0)).await;
        if made["metadata"]["annotations"]["injected"] == "yes" { Ok(()) } else { Err(made.to_string()) }
    })
    .await;

    let (upper, twin) = namespaces.run(&pair.pod("web")).await;
    let names = |list: &Value| -> Vec<String> {
        let all = list.as_array().cloned().unwrap_or_default();
        all.iter().map(|one| text(&one["name"]).to_owned()).collect()
    };
    assert_eq!(names(&twin["spec"]["containers"]), ["main", "injected"]);
    assert_eq!(names(&twin["status"]["containerStatuses"]).len(), 2);
    assert_eq!(names(&upper["status"]["containerStatuses"]), ["main"]);
    assert_eq!(condition(&upper, "Ready")["status"], "True");
    assert!(upper["metadata"]["annotations"].get("injected").is_none(), "{upper}");
    // It is neither taken for a change of ours nor taken away by one.
    namespaces.above.patch("pods/web", &json!({"metadata": {"labels": {"edited": "yes"}}})).await;
    let edited = |pod: &Value| pod["metadata"]["labels"]["edited"] == "yes";
    let twin = namespaces.below.see("pods/web", "is edited", edited).await;
    assert_eq!(names(&twin["spec"]["containers"]), ["main", "injected"]);
    namespaces.remove("web").await;
    namespaces.below.delete(&format!("mutatingwebhookconfigurations/{name}"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn limits_that_the_lower_cluster_sets_are_no_change_to_be_undone() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("limits").await;
    namespaces.prepare_below(&json!({})).await;
    let range = json!({"metadata": {"name": "range"}, "spec": {"limits": [{"type": "Container",
        "default": {"cpu": "1", "memory": "64Mi"}, "defaultRequest": {"cpu": "100m", "memory": "32Mi"}, "max": {"cpu": "2"}}]}});
    namespaces.below.create("limitranges", &range).await;
    let (upper, twin) = namespaces.run(&pair.pod("web")).await;
    assert_eq!(twin["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
    assert_eq!(upper["spec"]["containers"][0]["resources"], json!({}));
    namespaces.above.patch("pods/web", &json!({"metadata": {"labels": {"edited": "yes"}}})).await;
    let edited = |pod: &Value| pod["metadata"]["labels"]["edited"] == "yes";
    let twin = namespaces.below.see("pods/web", "is edited", edited).await;
    assert_eq!(twin["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1");
    // One that wants too much is refused below.
    let mut pod = pair.pod("large");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "3"}, "limits": {"cpu": "3"}});
    namespaces.above.create("pods", &pod).await;
    namespaces.above.told("large", &["maximum cpu usage per Container is 2"]).await;
    shows(&namespaces, "large", "maximum cpu usage per Container is 2").await;
    namespaces.remove("large").await;
}

/// Waits until the status of a pod has these words of the lower cluster.
async fn shows(namespaces: &super::cluster_pair::NamespacePair<'_>, pod: &str, words: &str) -> Value {
    let what = format!("shows {words:?}");
    namespaces.above.see(&format!("pods/{pod}"), &what, |pod| pod["status"].to_string().contains(words)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_over_the_lower_quota_waits_with_the_lower_clusters_words_until_there_is_room() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("quota").await;
    namespaces.prepare_below(&json!({})).await;
    let quota = json!({"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}});
    namespaces.below.create("resourcequotas", &quota).await;
    namespaces
        .below
        .see("resourcequotas/small", "is counted", |it| it["status"]["hard"]["pods"] == "0")
        .await;
    namespaces.above.create("pods", &pair.pod("web")).await;
    let told = namespaces.above.told("web", &["exceeded quota: small"]).await;
    assert_eq!(told["type"], "Warning");
    let waits = shows(&namespaces, "web", "exceeded quota: small").await;
    assert_eq!(waits["status"]["phase"], "Pending");
    // A pod that is not to be started again has had its chance.
    let mut once = pair.pod("once");
    once["spec"]["restartPolicy"] = json!("Never");
    namespaces.above.create("pods", &once).await;
    let failed = namespaces.above.phase("once", "Failed").await;
    assert_eq!(failed["status"]["reason"], "LowerAdmissionRejected", "{}", failed["status"]);
    assert!(text(&failed["status"]["message"]).contains("exceeded quota"), "{}", failed["status"]);
    namespaces.below.patch("resourcequotas/small", &json!({"spec": {"hard": {"pods": "5"}}})).await;
    namespaces.above.runs("web").await;
    let now = namespaces.above.get("pods/web").await;
    assert!(!now["status"].to_string().contains("exceeded quota"), "it is told no more: {}", now["status"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_pod_security_below_refuses_says_what_is_wrong_with_it() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("security").await;
    namespaces.prepare_below(&json!({"pod-security.kubernetes.io/enforce": "restricted"})).await;
    namespaces.above.create("pods", &pair.pod("careless")).await;
    namespaces.above.told("careless", &["violates PodSecurity", "allowPrivilegeEscalation"]).await;
    shows(&namespaces, "careless", "violates PodSecurity").await;
    let mut pod = pair.pod("careful");
    pod["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    pod["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    namespaces.run(&pod).await;
    assert!(namespaces.below.find("pods/careless").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn classes_that_only_the_upper_cluster_has_do_not_keep_a_pod_from_running() {
    let pair = ClusterPair::common().await;
    let namespaces = pair.namespace_pair("classes").await;
    let [only, both] = ["only", "both"].map(|name| format!("{name}-{}", namespaces.above.namespace));
    let class = |name: &str, value: i32| json!({"metadata": {"name": name}, "value": value});
    for name in [&only, &both] {
        namespaces.above.create("priorityclasses", &class(name, 1000)).await;
    }
    // The same name, and another number.
    namespaces.below.create("priorityclasses", &class(&both, 7)).await;
    let mut pod = pair.pod("only");
    pod["spec"]["priorityClassName"] = json!(only);
    let (_, twin) = namespaces.run(&pod).await;
    assert!(twin["spec"].get("priorityClassName").is_none(), "{}", twin["spec"]);
    let mut pod = pair.pod("both");
    pod["spec"]["priorityClassName"] = json!(both);
    let (upper, twin) = namespaces.run(&pod).await;
    assert_eq!((&twin["spec"]["priorityClassName"], &twin["spec"]["priority"]), (&json!(both), &json!(7)));
    assert_eq!(upper["spec"]["priority"], 1000);
    for (side, names) in [(&namespaces.above, vec![&only, &both]), (&namespaces.below, vec![&both])] {
        for name in names {
            side.delete(&format!("priorityclasses/{name}"), None).await;
        }
    }
}
