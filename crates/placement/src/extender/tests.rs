use std::sync::atomic::Ordering;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt as _;
use vk_provider::placement::PLACEMENT_ANNOTATION;

use super::*;
use crate::{
    ask::{
        AskLimits,
        tests::{
            TakesThree, client,
            fake_node::{FakeNode, ServingPair},
        },
    },
    metrics::CallLabel,
};

/// A busy machine may take long to connect.
const SOON: Duration = Duration::from_secs(20);

struct Test {
    extender: Extender,
    _folder: TempDir,
}

impl Test {
    /// An extender that knows no node yet.
    async fn new() -> Self {
        let (fit_client, supervisor, folder) = client(AskLimits::default()).await;
        let (preference, clock) = (Preference::default(), Clock::system());
        let extender = Extender::new(fit_client, preference, Metrics::default(), clock, supervisor);
        Self { extender, _folder: folder }
    }

    /// An extender that knows a node which takes requests and says nothing, one in this process, and that there is no other.
    async fn with_nodes() -> (Self, FakeNode, Arc<TakesThree>) {
        let test = Self::new().await;
        let (silent, local) =
            (FakeNode::start_silent(ServingPair::new()).await, Arc::new(TakesThree::default()));
        let inner = &test.extender.0;
        inner.fit_client.add_local("local", Arc::clone(&local) as Arc<dyn vk_provider::Provider>);
        inner.state.lock().apply_node(silent.object());
        let object = json!({"metadata": {"name": "local", "annotations": {PLACEMENT_ANNOTATION: "fit"}}});
        inner.state.lock().apply_node(serde_json::from_value(object).unwrap());
        inner.is_ready.send_replace(true);
        (test, silent, local)
    }

    async fn call(&self, verb: &str, body: impl Into<Body>) -> (StatusCode, String) {
        let request = Request::post(format!("/{verb}")).body(body.into()).unwrap();
        let response = router(self.extender.clone()).oneshot(request).await.unwrap();
        let code = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn answer(&self, verb: &str, body: &Value) -> Value {
        let (code, text) = self.call(verb, body.to_string()).await;
        assert_eq!(code, StatusCode::OK, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn count(&self, verb: &'static str, outcome: &'static str) -> u64 {
        self.extender.0.metrics.extender_calls.get_or_create(&CallLabel { verb, outcome }).get()
    }
}

fn args() -> Value {
    let pod = json!({"metadata": {"name": "a", "namespace": "team", "uid": "u"}, "spec": {"containers": []}});
    json!({"Pod": pod, "Nodes": null, "NodeNames": ["vk", "local", "machine"]})
}

#[tokio::test]
async fn a_node_that_does_not_answer_passes_and_the_others_have_been_asked() {
    let (test, silent, local) = Test::with_nodes().await;
    let started = Instant::now();
    let answer = test.answer("filter", &args()).await;
    assert!(started.elapsed() >= PATIENCE);
    assert_eq!(answer["NodeNames"], json!(["vk", "local", "machine"]));
    assert_eq!((test.count("filter", "partial"), test.count("filter", "answered")), (1, 0));
    assert_eq!(local.asked.load(Ordering::Relaxed), 1);
    // Nothing is asked now, and the node that hangs is no reason to wait again.
    let answer = test.answer("prioritize", &args()).await;
    assert_eq!(
        answer,
        json!([{"Host": "vk", "Score": 1}, {"Host": "local", "Score": 10}, {"Host": "machine", "Score": 7}])
    );
    test.answer("filter", &args()).await;
    let asked = async {
        while silent.requests().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, asked).await.expect("the silent node is asked");
    assert_eq!(silent.requests().len(), 1);
}

#[tokio::test]
async fn no_victims_die_on_a_node_that_does_not_answer() {
    let (test, _silent, _local) = Test::with_nodes().await;
    let victims = |uid: &str| json!({"Pods": [{"UID": uid}], "NumPDBViolations": 0});
    let candidates = json!({"vk": victims("v1"), "local": victims("v2"), "machine": victims("v3")});
    let args = json!({"Pod": args()["Pod"], "NodeNameToVictims": null, "NodeNameToMetaVictims": candidates});
    let answer = test.answer("preempt", &args).await;
    assert_eq!(answer, json!({"NodeNameToMetaVictims": {"local": victims("v2"), "machine": victims("v3")}}));
    assert_eq!(test.count("preempt", "partial"), 1);
}

#[tokio::test]
async fn before_the_nodes_are_listed_calls_are_refused() {
    let test = Test::new().await;
    for verb in ["filter", "prioritize"] {
        let (code, why) = test.call(verb, args().to_string()).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{why}");
        assert!(why.contains("not listed yet"), "{why}");
        assert_eq!(test.count(verb, "refused"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_arrive_is_given_up_after_a_second() {
    let test = Test::new().await;
    let started = Instant::now();
    let stalled = Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>());
    let call = tokio::time::timeout(Duration::from_mins(1), test.call("filter", stalled));
    let (code, why) = call.await.expect("the call is given up");
    assert_eq!((code, started.elapsed()), (StatusCode::REQUEST_TIMEOUT, Duration::from_secs(1)), "{why}");
    assert_eq!(test.count("filter", "refused"), 1);
}

#[tokio::test]
async fn a_node_that_fits_with_room_for_none_is_asked_once_and_takes_no_victims() {
    let (test, _silent, local) = Test::with_nodes().await;
    local.has_no_room.store(true, Ordering::Relaxed);
    let answer = test.answer("filter", &args()).await;
    assert_eq!(answer["NodeNames"], json!(["vk", "local", "machine"]));
    assert_eq!(local.asked.load(Ordering::Relaxed), 1);
    let candidates = json!({"local": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}});
    let args = json!({"Pod": args()["Pod"], "NodeNameToVictims": null, "NodeNameToMetaVictims": candidates});
    assert_eq!(test.answer("preempt", &args).await, json!({"NodeNameToMetaVictims": {}}));
}

#[tokio::test]
async fn what_kube_scheduler_does_not_send_is_refused_with_the_reason() {
    let (test, _silent, local) = Test::with_nodes().await;
    let whole_nodes = json!({"Pod": {}, "Nodes": {"items": []}, "NodeNames": null}).to_string();
    let whole_pods = json!({"Pod": {}, "NodeNameToVictims": {}, "NodeNameToMetaVictims": null}).to_string();
    for (verb, body, code, why) in [
        ("filter", "{".to_owned(), 400, "not what kube-scheduler sends"),
        ("filter", json!({"NodeNames": []}).to_string(), 400, "Pod"),
        ("filter", whole_nodes.clone(), 400, "nodeCacheCapable: true"),
        ("prioritize", whole_nodes, 400, "nodeCacheCapable: true"),
        ("preempt", whole_pods, 400, "nodeCacheCapable: true"),
        ("filter", " ".repeat(10 << 20), 413, "more than 8388608 bytes"),
    ] {
        let (status, text) = test.call(verb, body).await;
        assert_eq!(status.as_u16(), code, "{text}");
        assert!(text.contains(why), "{text}");
    }
    assert_eq!(local.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_pod_that_is_too_large_is_refused_and_environments_do_not_count() {
    let (test, _silent, local) = Test::with_nodes().await;
    let env = vec![json!({"name": "a"}); 200_000];
    let mut args = args();
    args["Pod"]["spec"]["containers"] = json!([{"name": "main", "env": env}]);
    test.answer("filter", &args).await;
    assert_eq!(local.asked.load(Ordering::Relaxed), 1);
    let seen = Arc::clone(&local.seen.lock()[0]);
    assert_eq!(seen.spec.as_ref().unwrap().containers[0].env, None);
    args["Pod"]["spec"]["volumes"] = json!(vec![json!({"name": "a", "emptyDir": {}}); 100_000]);
    for verb in ["filter", "prioritize"] {
        let (code, why) = test.call(verb, args.to_string()).await;
        assert_eq!(code, StatusCode::PAYLOAD_TOO_LARGE, "{why}");
    }
    assert_eq!(local.asked.load(Ordering::Relaxed), 1);
}
