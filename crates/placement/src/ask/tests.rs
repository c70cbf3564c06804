mod fake_api_server;
pub(crate) mod fake_node;
mod live;
mod node_token;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use http::StatusCode;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_kube::{ClientOptions, Metrics};
use vk_provider::{
    ObservedPod, PodBundle, PodRef,
    ability::{Fit, Verdict},
};
use vk_supervisor::Supervisor;

use self::{
    fake_api_server::{ACCOUNT, FakeApiServer, issued, jwt},
    fake_node::{FakeNode, ServingPair},
};
use super::*;

const ANSWER: &str = r#"{"verdicts": [{"verdict": "fits", "room": 3, "fullness": 20}]}"#;

/// A client without a token, and the folder of its kubeconfig.
pub(crate) async fn client(limits: AskLimits) -> (FitClient, Supervisor, TempDir) {
    client_of("https://127.0.0.1:1", &json!({}), limits).await
}

/// A client of this API server with the credentials of a user.
async fn client_of(server: &str, user: &Value, limits: AskLimits) -> (FitClient, Supervisor, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "main",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let supervisor = Supervisor::new();
    let options = ClientOptions { kubeconfig: Some(kubeconfig), server: None };
    let client = options.connect(&supervisor, Metrics::default()).await.unwrap();
    (FitClient::new(client, limits), supervisor, folder)
}

/// An API server, and the credentials of a ServiceAccount.
async fn account() -> (FakeApiServer, Value) {
    let token = jwt(&json!({"sub": ACCOUNT, "aud": ["kubernetes"]}));
    (FakeApiServer::start().await, json!({"token": token}))
}

fn question() -> FitQuery {
    FitQuery { pods: vec![Arc::new(Pod::default())], ..FitQuery::default() }
}

/// A provider that takes three pods of any kind.
#[derive(Default)]
pub(crate) struct TakesThree {
    /// It says that pods fit, and that it has room for none.
    pub(crate) has_no_room: AtomicBool,
    pub(crate) asked: AtomicUsize,
    /// The held pods and the pods in question of the last query.
    pub(crate) seen: Mutex<Vec<Arc<Pod>>>,
}

#[async_trait]
impl Provider for TakesThree {
    async fn create_pod(&self, _: PodBundle) -> vk_provider::Result<()> {
        Ok(())
    }

    async fn update_pod(&self, _: PodBundle) -> vk_provider::Result<()> {
        Ok(())
    }

    async fn delete_pod(&self, _: &PodRef, _: Option<Arc<Pod>>, _: Duration) -> vk_provider::Result<()> {
        Ok(())
    }

    async fn pod_status(&self, _: &PodRef) -> vk_provider::Result<PodStatus> {
        Err(vk_provider::Error::not_found("nothing runs"))
    }

    async fn pods(&self) -> vk_provider::Result<Vec<ObservedPod>> {
        Ok(Vec::new())
    }

    fn fit(&self) -> Option<&dyn Fit> {
        Some(self)
    }
}

impl Fit for TakesThree {
    fn fit(&self, held: &[Arc<Pod>], pods: &[Arc<Pod>], _: &[Arc<str>]) -> Vec<Verdict> {
        *self.seen.lock() = [held, pods].concat();
        self.asked.fetch_add(1, Ordering::Relaxed);
        let room = if self.has_no_room.load(Ordering::Relaxed) { 0 } else { 3 };
        pods.iter().map(|_| Verdict::Fits { room, fullness: 20 }).collect()
    }
}

#[tokio::test]
async fn the_node_whose_key_is_in_its_object_gets_the_token_and_answers() {
    let (api_server, user) = account().await;
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    let (client, _supervisor, _folder) = client_of(&api_server.url, &user, AskLimits::default()).await;
    for _ in 0..3 {
        let answer = client.ask(&node.object(), &question()).await.unwrap();
        assert_eq!(answer.verdicts, [Verdict::Fits { room: 3, fullness: 20 }]);
    }
    let seen = node.requests();
    assert_eq!(seen.len(), 3);
    assert_eq!(node.tokens(), [issued(1), issued(1), issued(1)]);
    assert_eq!(node.connections(), 1, "it is kept");
}

#[tokio::test]
async fn a_server_with_another_key_gets_neither_token_nor_query() {
    let (api_server, user) = account().await;
    let server = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    let (client, _supervisor, _folder) = client_of(&api_server.url, &user, AskLimits::default()).await;
    let object = server.object_with_key(&ServingPair::new().fingerprint());
    let error = client.ask(&object, &question()).await.unwrap_err();
    assert!(matches!(error, AskError::WrongKey { .. }), "{error:?}");
    assert!(error.to_string().contains("virtual-kubelet.io/serving-key"), "{error}");
    assert_eq!((server.requests(), server.connections()), (Vec::new(), 0));
    // The test would see a token: the same server gets one if the object names its key.
    client.ask(&server.object(), &question()).await.unwrap();
    assert_eq!(server.tokens(), [issued(1)]);
}

#[tokio::test]
async fn a_server_that_shows_the_certificate_without_having_its_key_gets_nothing() {
    let (genuine, (api_server, user)) = (ServingPair::new(), account().await);
    let server = FakeNode::start(genuine.with_key_of(&ServingPair::new()), StatusCode::OK, ANSWER).await;
    let (client, _supervisor, _folder) = client_of(&api_server.url, &user, AskLimits::default()).await;
    let error = client.ask(&server.object_with_key(&genuine.fingerprint()), &question()).await.unwrap_err();
    assert!(matches!(error, AskError::Unreachable { .. }), "{error:?}");
    assert_eq!((server.requests(), server.connections()), (Vec::new(), 0));
}

#[tokio::test]
async fn a_new_key_in_the_object_is_used_for_the_next_question() {
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    client.ask(&node.object(), &question()).await.unwrap();
    let before = node.object();
    node.replace_key(ServingPair::new());
    // The old connection has the old key.
    client.ask(&before, &question()).await.unwrap();
    client.ask(&node.object(), &question()).await.unwrap();
    assert_eq!((node.requests().len(), node.connections()), (3, 2));
    assert!(client.ask(&before, &question()).await.is_err(), "the old key opens no new connection");
}

#[tokio::test]
async fn answers_that_are_no_verdicts_are_errors_that_say_why() {
    let (client, _supervisor, _folder) =
        client(AskLimits { answer_bytes: 200, ..AskLimits::default() }).await;
    let long = format!(r#"{{"verdicts": [{}]}}"#, " ".repeat(300));
    for (code, body, words) in [
        (403, "Forbidden (user=x)\n", &["403", "Forbidden (user=x)", "create nodes/placement"][..]),
        (401, "Unauthorized", &["401", "create nodes/placement"]),
        (501, "the provider of this node does not offer it", &["501", "does not offer"]),
        (302, "", &["302"]),
        (200, "<html>", &["cannot be used", "expected value"]),
        (200, r#"{"verdicts": []}"#, &["0 verdicts for 1 pods"]),
        (200, &long, &["more than 200 bytes"]),
    ] {
        let node = FakeNode::start(ServingPair::new(), StatusCode::from_u16(code).unwrap(), body).await;
        let error = client.ask(&node.object(), &question()).await.unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{code}: {error}");
        }
        assert_eq!(node.requests().len(), 1, "{code}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_costs_the_time_limit() {
    let limits = AskLimits { answer: Duration::from_secs(2), ..AskLimits::default() };
    let (client, _supervisor, _folder) = client(limits).await;
    let node = FakeNode::start_silent(ServingPair::new()).await;
    let error = client.ask(&node.object(), &question()).await.unwrap_err();
    assert!(matches!(error, AskError::Timeout { .. }), "{error:?}");
    assert_eq!(node.requests().len(), 1);
}

#[tokio::test]
async fn a_server_that_does_not_finish_the_handshake_costs_the_time_to_connect() {
    let limits = AskLimits { connect: Duration::from_millis(300), ..AskLimits::default() };
    let (client, _supervisor, _folder) = client(limits).await;
    let (node, _listener) = FakeNode::without_tls().await;
    let error = client.ask(&node, &question()).await.unwrap_err().to_string();
    assert!(error.contains("not connected within 300ms"), "{error}");
}

#[tokio::test]
async fn nobody_at_the_address_is_unreachable() {
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    let (node, listener) = FakeNode::without_tls().await;
    drop(listener);
    let error = client.ask(&node, &question()).await.unwrap_err();
    assert!(
        matches!(&error, AskError::Unreachable { reason, .. } if reason.contains("refused")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_query_that_is_too_long_is_not_sent_and_does_not_count_as_a_failure_of_the_node() {
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    let object = node.object();
    let refused = async |query: FitQuery| {
        let answer = client.ask(&object, &query).await.unwrap();
        assert_eq!(answer.verdicts.len(), query.pods.len());
        answer.verdicts[0].to_string()
    };
    let long = FitQuery { without: vec!["u".repeat(8 << 20).into()], ..question() };
    assert_eq!(refused(long).await, "the query about the pods has more than 8 MiB");
    let gone = FitQuery { without: vec!["u".into(); 10_001], ..question() };
    assert_eq!(refused(gone).await, "the query about the pods has more than 10000 pods that are gone");
    let containers = vec![k8s_openapi::api::core::v1::Container::default(); 100_001];
    let mut pod = Pod::default();
    pod.spec.get_or_insert_default().containers = containers;
    let pod = Arc::new(pod);
    let many = FitQuery { pods: vec![Arc::clone(&pod), pod], ..FitQuery::default() };
    assert_eq!(refused(many).await, "the query about the pods has more than 100000 JSON objects");
    assert_eq!(node.connections(), 0);
}

#[tokio::test]
async fn nodes_see_only_the_parts_of_pods_that_decide_whether_they_fit() {
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    let pod = |name: &str| -> Arc<Pod> {
        let container = json!({"name": "main", "env": [{"name": "A", "value": "hush"}], "resources": {"requests": {"cpu": "1"}}});
        serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {"example.com/token": "hush"}},
            "spec": {"containers": [container]},
        }))
        .unwrap()
    };
    let query = FitQuery { held: vec![pod("a")], pods: vec![pod("b")], ..FitQuery::default() };
    client.ask(&node.object(), &query).await.unwrap();
    let body = String::from_utf8(node.bodies()[0].to_vec()).unwrap();
    assert!(!body.contains("hush"), "{body}");
    let provider = Arc::new(TakesThree::default());
    client.add_local("vk", Arc::clone(&provider) as Arc<dyn Provider>);
    client.ask(&node.object(), &query).await.unwrap();
    let sent: FitQuery = serde_json::from_str(&body).unwrap();
    assert_eq!(*provider.seen.lock(), [sent.held, sent.pods].concat(), "in this process, too");
    assert_eq!(vk_provider::requests::requests(&provider.seen.lock()[1])["cpu"].to_string(), "1");
}

#[tokio::test]
async fn a_node_of_this_process_is_asked_directly() {
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await;
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    let provider = Arc::new(TakesThree::default());
    client.add_local("vk", Arc::clone(&provider) as Arc<dyn Provider>);
    let answer = client.ask(&node.object(), &FitQuery { explain: true, ..question() }).await.unwrap();
    assert_eq!(answer.verdicts, [Verdict::Fits { room: 3, fullness: 20 }]);
    assert_eq!(answer.best_nodes, Some(vec![Vec::new()]));
    assert_eq!((provider.asked.load(Ordering::Relaxed), node.connections()), (1, 0));
    client.remove_local("vk");
    client.ask(&node.object(), &question()).await.unwrap();
    assert_eq!((provider.asked.load(Ordering::Relaxed), node.connections()), (1, 1));
}

#[tokio::test]
async fn an_answer_is_limited_by_the_question() {
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    let refused = |causes: usize, text: &str| {
        let why = vec![json!({"text": text, "nodes": 1}); causes];
        json!({"verdicts": [{"verdict": "refused", "lasting": false, "why": why}]}).to_string()
    };
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, &refused(190_000, "")).await;
    let error = client.ask(&node.object(), &question()).await.unwrap_err().to_string();
    assert!(error.contains("more than"), "{error}");
    let answer = client.ask(&node.object(), &FitQuery { explain: true, ..question() }).await.unwrap();
    let Verdict::Refused { why, .. } = &answer.verdicts[0] else { panic!("{answer:?}") };
    assert_eq!(why.len(), 190_000, "a person wants to see all");
}

#[tokio::test]
async fn a_verdict_is_cut_on_arrival() {
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    let long = "x".repeat(1000);
    let why: Vec<Value> = (1..=30).map(|nodes| json!({"text": &long, "nodes": nodes})).collect();
    let unknown = json!({"verdict": "unknown", "why": &long});
    let body = json!({"verdicts": [{"verdict": "refused", "lasting": true, "why": why}, unknown], "bestNodes": [[], []]});
    let node = FakeNode::start(ServingPair::new(), StatusCode::OK, &body.to_string()).await;
    let pod = Arc::new(Pod::default());
    let query = FitQuery { pods: vec![Arc::clone(&pod), pod], ..FitQuery::default() };
    let answer = client.ask(&node.object(), &query).await.unwrap();
    let [Verdict::Refused { why, lasting: true }, Verdict::Unknown { why: unknown }] = &answer.verdicts[..]
    else {
        panic!("{answer:?}")
    };
    assert!(why.len() <= 9 && why.iter().all(|cause| cause.text.len() <= 300), "{} causes", why.len());
    assert_eq!(
        why.iter().map(|cause| cause.nodes).sum::<u32>(),
        (1..=30).sum::<u32>(),
        "no lower node is lost"
    );
    assert_eq!((unknown.len(), answer.best_nodes.clone()), (300, None));
}

/// Questions to this many nodes that do not answer.
fn ask_all(
    client: &FitClient,
    node: &FakeNode,
    nodes: std::ops::Range<usize>,
    query: &FitQuery,
) -> tokio::task::JoinSet<Result<FitAnswer, AskError>> {
    let mut asking = tokio::task::JoinSet::new();
    for number in nodes {
        let (client, query, mut object) = (client.clone(), query.clone(), node.object());
        object.metadata.name = Some(format!("vk-{number}"));
        asking.spawn(async move { client.ask(&object, &query).await });
    }
    asking
}

async fn eventually(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), waiting).await.expect("it is so eventually");
}

/// A pod of which this many bytes decide.
fn pod_of(bytes: usize) -> Arc<Pod> {
    let pod = json!({"spec": {"containers": [], "nodeSelector": {"a": "x".repeat(bytes)}}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

#[tokio::test]
async fn a_question_to_many_nodes_is_in_memory_once() {
    let (client, _supervisor, _folder) = client(AskLimits::default()).await;
    let node = FakeNode::start_silent(ServingPair::new()).await;
    let query = FitQuery { pods: vec![pod_of(1 << 20)], held: vec![pod_of(1 << 10)], ..FitQuery::default() };
    let asking = ask_all(&client, &node, 0..20, &query);
    eventually(|| node.bodies().len() == 20).await;
    let bytes = client.0.texts.bytes();
    assert!((1 << 20..(1 << 20) + 1000).contains(&bytes), "{bytes} bytes");
    for body in node.bodies() {
        let seen: FitQuery = serde_json::from_slice(&body).unwrap();
        assert_eq!((&seen.pods, &seen.held), (&query.pods, &query.held));
    }
    drop(asking);
    eventually(|| client.0.texts.bytes() == 0).await;
}

#[tokio::test]
async fn all_questions_together_have_a_limited_size_and_more_wait() {
    let limits =
        AskLimits { answer: Duration::from_secs(1), connect: Duration::from_mins(1), ..AskLimits::default() };
    let (client, _supervisor, _folder) = client(limits).await;
    let node = FakeNode::start_silent(ServingPair::new()).await;
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..20 {
        let query = FitQuery { pods: vec![pod_of(2 << 20)], ..FitQuery::default() };
        let mut one = ask_all(&client, &node, number..number + 1, &query);
        asking.spawn(async move { one.join_next().await.unwrap().unwrap() });
    }
    eventually(|| client.0.texts.bytes() > 13 << 20).await;
    let (other, small) = (FakeNode::start(ServingPair::new(), StatusCode::OK, ANSWER).await, question());
    client.ask(&other.object(), &small).await.unwrap();
    assert!(client.0.texts.bytes() > 0, "a small one does not wait");
    while let Some(answer) = asking.join_next().await {
        let bytes = client.0.texts.bytes();
        assert!(bytes <= 16 << 20, "{bytes} bytes");
        assert!(matches!(answer.unwrap(), Err(AskError::Timeout { .. })), "each is asked in the end");
    }
    assert_eq!(client.0.texts.bytes(), 0);
}
