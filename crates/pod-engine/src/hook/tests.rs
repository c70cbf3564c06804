use std::sync::atomic::Ordering::SeqCst;

use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::json;
use vk_supervisor::Clock;

use super::*;
use crate::probe::tests::{RecordedEvents, Script, ScriptedRuntime, Server, text};

fn call(lifecycle: &serde_json::Value) -> (HookCall, RecordedEvents) {
    let told = RecordedEvents::default();
    let container = serde_json::from_value(json!({
        "name": "main", "lifecycle": lifecycle, "ports": [{"name": "web", "containerPort": 1}],
    }))
    .unwrap();
    let ip = Some("127.0.0.1".parse().unwrap());
    let call =
        HookCall { pod: PodRef::new("ns", "p", "u"), container, id: "a".to_owned(), ip, record: told.sink() };
    (call, told)
}

fn prober(runtime: &Arc<ScriptedRuntime>) -> Arc<Prober> {
    Prober::new(runtime.clone(), Clock::system()).unwrap()
}

fn event(reason: &str, message: &str) -> Vec<(String, String)> {
    vec![(reason.to_owned(), message.to_owned())]
}

#[tokio::test(start_paused = true)]
async fn a_container_without_hooks_has_none_run() {
    let runtime = ScriptedRuntime::that([]);
    let (call, told) = call(&json!({}));
    let prober = prober(&runtime);
    assert_eq!(post_start(&prober, &call).await, Ok(()));
    let stopped = pre_stop(&prober, &call, NO_TIMEOUT).await;
    assert_eq!((stopped.took, stopped.unfinished.is_none()), (Duration::ZERO, true));
    assert!(told.events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_command_that_fails_after_the_start_is_told_with_its_output_in_the_state_and_without_in_the_event()
{
    let runtime = ScriptedRuntime::that([
        Script::Ends(0, "fine"),
        Script::Ends(3, "secret\n"),
        Script::Fails("rpc error: gone"),
    ]);
    let (call, told) = call(&json!({"postStart": {"exec": {"command": ["sh", "-c", "$(X)"]}}}));
    let prober = prober(&runtime);
    assert_eq!(post_start(&prober, &call).await, Ok(()));
    assert!(told.events().is_empty());
    let failure = post_start(&prober, &call).await.unwrap_err();
    assert_eq!(
        failure.message,
        "Exec lifecycle hook ([sh -c $(X)]) for Container \"main\" in Pod \"p_ns(u)\" failed - error: \
         command 'sh -c $(X)' exited with 3: secret\n, message: \"secret\\n\""
    );
    assert_eq!(told.events(), event("FailedPostStartHook", "PostStartHook failed"));
    let failure = post_start(&prober, &call).await.unwrap_err();
    assert!(failure.message.ends_with("failed - error: rpc error: gone, message: \"\""), "{failure}");
    assert_eq!(runtime.limits.lock()[..], [NO_TIMEOUT; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_hook_ends_when_nobody_waits_for_it_any_more() {
    let runtime = ScriptedRuntime::that([Script::Hangs]);
    let (call, told) = call(&json!({"postStart": {"exec": {"command": ["x"]}}}));
    let prober = prober(&runtime);
    assert!(timeout(Duration::from_mins(1), post_start(&prober, &call)).await.is_err());
    assert_eq!((runtime.running.load(SeqCst), told.events().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hook_before_the_stop_takes_of_the_grace_what_it_needs() {
    let runtime = ScriptedRuntime::that([Script::Ends(1, "")]);
    let prober = prober(&runtime);
    let (sleeper, told) = call(&json!({"preStop": {"sleep": {"seconds": 7}}}));
    let stopped = pre_stop(&prober, &sleeper, Duration::from_secs(30)).await;
    assert_eq!((stopped.took, stopped.unfinished.is_none()), (Duration::from_secs(7), true));
    let stopped = pre_stop(&prober, &sleeper, Duration::from_secs(5)).await;
    assert_eq!((stopped.took, stopped.unfinished.is_some()), (Duration::from_secs(5), true));
    assert!(told.events().is_empty(), "being late is no failure");

    let (failing, told) = call(&json!({"preStop": {"exec": {"command": ["x"]}}}));
    let stopped = pre_stop(&prober, &failing, Duration::from_secs(5)).await;
    assert_eq!((stopped.took, stopped.unfinished.is_none()), (Duration::ZERO, true));
    assert_eq!(told.events(), event("FailedPreStopHook", "PreStopHook failed"));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_outlasts_the_grace_goes_on_beside_the_stop_or_is_cancelled() {
    let runtime = ScriptedRuntime::that([Script::Hangs]);
    let prober = prober(&runtime);
    let (call, _) = call(&json!({"preStop": {"exec": {"command": ["x"]}}}));
    let stopped = pre_stop(&prober, &call, Duration::from_secs(2)).await;
    assert_eq!(runtime.running.load(SeqCst), 1, "still there");
    drop(stopped);
    assert_eq!(runtime.running.load(SeqCst), 0);
}

#[tokio::test]
async fn whatever_is_answered_over_http_is_good_and_no_answer_is_not() {
    let server = Server::http(|request: &Request<Incoming>| {
        assert_eq!(request.headers()["user-agent"], "kube-lifecycle/1.36");
        Response::builder().status(500).body(text("broken")).unwrap()
    })
    .await;
    let prober = prober(&ScriptedRuntime::that([]));
    let port = server.address.port();
    let (good, told) = call(&json!({"postStart": {"httpGet": {"port": port, "path": "/begin"}}}));
    assert_eq!(post_start(&prober, &good).await, Ok(()));
    assert!(server.requests.lock()[0].ends_with("/begin"));
    assert!(told.events().is_empty());

    let nobody = Server::nobody().await;
    let (bad, told) = call(&json!({"postStart": {"httpGet": {"port": nobody.port(), "path": "/begin"}}}));
    let failure = post_start(&prober, &bad).await.unwrap_err();
    assert_eq!(
        failure.message,
        format!(
            "HTTP lifecycle hook (/begin) for Container \"main\" in Pod \"p_ns(u)\" failed - error: \
             Get \"http://{nobody}/begin\": dial tcp {nobody}: connect: connection refused"
        )
    );
    assert_eq!(told.events(), event("FailedPostStartHook", "PostStartHook failed"));
}

#[tokio::test]
async fn a_server_that_was_asked_by_tls_and_speaks_none_is_asked_again_without() {
    let server = Server::http(|request: &Request<Incoming>| {
        assert!(!request.headers().contains_key("authorization"));
        Response::new(text(""))
    })
    .await;
    let place = server.address;
    let (call, told) = call(&json!({"postStart": {"httpGet": {
        "port": place.port(), "scheme": "HTTPS", "httpHeaders": [{"name": "Authorization", "value": "x"}],
    }}}));
    assert_eq!(post_start(&prober(&ScriptedRuntime::that([])), &call).await, Ok(()));
    let message =
        format!("request to HTTPS lifecycle hook {place} got HTTP response, retry with HTTP succeeded");
    assert_eq!(told.events(), event("LifecycleHTTPFallback", &message));
    assert_eq!(told.whole()[0].container, None);
    assert_eq!(server.requests.lock().len(), 1);
}

#[tokio::test]
async fn a_pod_without_address_and_a_handler_of_nothing_fail_with_a_reason() {
    let prober = prober(&ScriptedRuntime::that([]));
    let (mut call, _) = call(&json!({"postStart": {"httpGet": {"port": "web"}}}));
    call.ip = None;
    let failure = post_start(&prober, &call).await.unwrap_err();
    assert!(failure.message.ends_with("the pod has no IP address"), "{failure}");
    call.container.lifecycle = serde_json::from_value(json!({"postStart": {}})).unwrap();
    let failure = post_start(&prober, &call).await.unwrap_err();
    assert!(failure.message.starts_with("Cannot run handler: invalid handler"), "{failure}");
}

#[test]
fn the_hook_of_a_pod_that_is_gone_is_found_on_its_container() {
    let mut container: snapshot::Container = serde_json::from_value(json!({
        "id": "a", "name": "main", "attempt": 0, "sandbox": "s", "state": "Running", "created": "2026-01-01T00:00:00Z",
        "image": "", "imageRef": "", "logPath": "", "labels": {}, "annotations": {},
    }))
    .unwrap();
    assert_eq!(spec_from_annotations(&container), None);
    let mut remember =
        |key: &str, value: &str| container.annotations.insert(key.to_owned(), value.to_owned());
    remember(annotation::PRE_STOP, r#"{"httpGet":{"port":"web"}}"#);
    remember(annotation::PORTS, r#"[{"name":"web","containerPort":81,"protocol":"TCP"}]"#);
    let found = spec_from_annotations(&container).unwrap();
    let action = found.lifecycle.as_ref().unwrap().pre_stop.as_ref().unwrap().http_get.as_ref().unwrap();
    assert_eq!(found.name, "main");
    assert_eq!(HttpGet::new(action, &found, "10.0.0.1", "lifecycle").unwrap().authority(), "10.0.0.1:81");
    container.annotations.insert(annotation::PRE_STOP.to_owned(), "nonsense".to_owned());
    assert_eq!(spec_from_annotations(&container), None);
}
