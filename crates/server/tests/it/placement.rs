//! The question whether pods fit, and who may ask it.

use std::sync::{Arc, atomic::Ordering};

use serde_json::{Value, json};
use vk_provider::placement::MAX_QUERY_BYTES;
use vk_server::ConnectionLimits;

use crate::harness::{FOR_PLACEMENT, MAY, POWERLESS, TOKEN, TestNode};

const FIT: &str = "/placement/fit";
const QUESTION: &str = r#"{"pods": [{"metadata": {"name": "a"}}]}"#;

/// Requests to routes that are not placement's.
const OTHERS: [(&str, &str); 20] = [
    ("GET", "/healthz"),
    ("GET", "/configz"),
    ("GET", "/pods"),
    ("GET", "/runningpods/"),
    ("GET", "/containerLogs/ns/web/main"),
    ("GET", "/exec/ns/web/main"),
    ("POST", "/exec/ns/web/main"),
    ("POST", "/attach/ns/web/main"),
    ("POST", "/portForward/ns/web"),
    ("POST", "/run/ns/web/main"),
    ("GET", "/stats/summary"),
    ("POST", "/stats/summary"),
    ("GET", "/metrics"),
    ("GET", "/metrics/resource"),
    ("GET", "/logs/"),
    ("POST", "/logs/"),
    ("GET", "/debug/pprof/"),
    ("POST", "/"),
    ("POST", "/placements/fit"),
    ("POST", "/%70lacement/fit"),
];

async fn start() -> TestNode {
    let node = TestNode::start(ConnectionLimits::default()).await;
    node.provider.has_fit.store(true, Ordering::Relaxed);
    node
}

#[tokio::test]
async fn a_question_reaches_the_provider_and_its_verdicts_come_back() {
    let node = start().await;
    let question = json!({"held": [{}, {}], "pods": [{}, {}], "without": ["uid"]});
    let (code, body) = node.send("POST", FIT, TOKEN, &question.to_string()).await;
    let fits = json!({"verdict": "fits", "room": 21, "fullness": 50});
    assert_eq!((code, body.parse::<Value>().unwrap()), (200, json!({"verdicts": [fits, fits]})));
    let (code, body) = node.send("POST", FIT, TOKEN, r#"{"pods": [{}], "explain": true}"#).await;
    let body: Value = body.parse().unwrap();
    assert_eq!(code, 200, "{body}");
    let names: Vec<&Value> =
        body["bestNodes"][0].as_array().unwrap().iter().map(|node| &node["name"]).collect();
    assert_eq!(names, ["lower-0", "lower-1", "lower-2"]);
    assert_eq!(body["bestNodes"][0][0]["free"], json!({"cpu": "2"}));
}

#[tokio::test]
async fn a_question_needs_create_nodes_placement_and_no_other_permission_will_do() {
    let node = start().await;
    assert_eq!(node.send("POST", FIT, "", QUESTION).await.0, 401);
    assert_eq!(node.send("POST", FIT, POWERLESS, QUESTION).await.0, 403);
    let subresources =
        ["proxy", "pods", "healthz", "configz", "log", "stats", "metrics", "checkpoint", "exec", "fit", ""];
    for subresource in subresources {
        for verb in ["create", "get", "*"] {
            let token = format!("{MAY}{verb}/{subresource}");
            let (code, why) = node.send("POST", FIT, &token, QUESTION).await;
            assert!(code == 403 && why.contains("subresource(s)=[placement]"), "{token}: {code} {why}");
        }
    }
    for verb in ["get", "update", "patch", "delete"] {
        let token = format!("{MAY}{verb}/placement");
        assert_eq!(node.send("POST", FIT, &token, QUESTION).await.0, 403, "{token}");
    }
    assert_eq!(node.send("POST", FIT, &format!("{MAY}create/placement"), QUESTION).await.0, 200);
}

#[tokio::test]
async fn permission_for_placement_opens_nothing_else() {
    let node = start().await;
    for verb in ["create", "get"] {
        let token = format!("{MAY}{verb}/placement");
        for (method, path) in OTHERS {
            assert_eq!(node.send(method, path, &token, "").await.0, 403, "{token}: {method} {path}");
        }
    }
    // Others do open them, so that it is not the requests that are refused.
    for (method, path) in OTHERS {
        assert_ne!(node.send(method, path, TOKEN, "").await.0, 403, "{method} {path}");
    }
}

#[tokio::test]
async fn a_token_for_placement_counts_for_placement_only_and_needs_the_permission() {
    let node = start().await;
    // Its user may do everything, so that only the audience can be the reason.
    let token = format!("{FOR_PLACEMENT}{TOKEN}");
    assert_eq!(node.send("POST", FIT, &token, QUESTION).await.0, 200);
    for (method, path) in OTHERS {
        assert_eq!(node.send(method, path, &token, "").await.0, 401, "{method} {path}");
    }
    let powerless = format!("{FOR_PLACEMENT}{POWERLESS}");
    assert_eq!(node.send("POST", FIT, &powerless, QUESTION).await.0, 403);
}

#[tokio::test]
async fn invalid_questions_are_refused_with_the_reason() {
    let node = start().await;
    for (question, words) in [
        ("", "EOF"),
        ("{}", "missing field `pods`"),
        (r#"{"pods": [], "explian": true}"#, "unknown field `explian`"),
        (r#"{"pods": [{}, {"spec": {"containers": 1}}]}"#, "pods[1].spec.containers: "),
    ] {
        let (code, why) = node.send("POST", FIT, TOKEN, question).await;
        assert!(code == 400 && why.contains(words), "{question}: {code} {why}");
    }
    assert_eq!(node.send("GET", FIT, TOKEN, "").await.0, 405);
    assert_eq!(node.send("POST", "/placement/other", TOKEN, "").await.0, 404);
}

#[tokio::test]
async fn a_question_that_is_too_long_is_refused_with_the_limit() {
    let node = start().await;
    let padded = |length: usize| format!("{QUESTION}{}", " ".repeat(length - QUESTION.len()));
    let (code, why) = node.send("POST", FIT, TOKEN, &padded(MAX_QUERY_BYTES + 1)).await;
    assert!(code == 413 && why.contains("more than 8 MiB"), "{code} {why}");
    assert_eq!(node.send("POST", FIT, TOKEN, &padded(MAX_QUERY_BYTES)).await.0, 200);
}

#[tokio::test]
async fn a_question_that_would_take_much_more_memory_than_its_text_is_refused() {
    let node = start().await;
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let send = |question: String| {
        let node = &node;
        async move { node.send("POST", FIT, TOKEN, &question).await }
    };
    for (field, item, most) in [("pods", "{}", 1000), ("held", "{}", 1000), ("without", "\"u\"", 10_000)] {
        let others = if field == "pods" { "" } else { r#""pods": [], "# };
        let question = |count: usize| format!(r#"{{{others}"{field}": [{}]}}"#, list(item, count));
        let (code, why) = send(question(most + 1)).await;
        assert!(code == 400 && why.contains(&format!("at most {most}")), "{field}: {code} {why}");
        assert_eq!(send(question(most)).await.0, 200, "{field}");
    }
    // As many as fit into the limit, each with the size of all its fields.
    let items = list("{}", (MAX_QUERY_BYTES - 100) / 3);
    for question in [
        format!(r#"{{"pods": [{items}]}}"#),
        format!(r#"{{"pods": [{{"spec": {{"containers": [{items}]}}}}]}}"#),
    ] {
        let (code, why) = send(question).await;
        assert!(code == 413 && why.contains("objects"), "{code} {why}");
    }
}

#[tokio::test]
async fn a_provider_that_cannot_tell_says_so() {
    let node = TestNode::start(ConnectionLimits::default()).await;
    let (code, why) = node.send("POST", FIT, TOKEN, QUESTION).await;
    assert!(code == 501 && why.contains("does not offer"), "{code} {why}");
}

#[tokio::test]
async fn too_many_questions_at_once_are_refused() {
    let node = start().await;
    let all = u32::try_from(node.fit_queries.available_permits()).unwrap();
    let taken = Arc::clone(&node.fit_queries).try_acquire_many_owned(all).unwrap();
    let (code, why) = node.send("POST", FIT, TOKEN, QUESTION).await;
    assert!(code == 429 && why.contains("too many fit queries"), "{code} {why}");
    drop(taken);
    for _ in 0..2 * all {
        assert_eq!(node.send("POST", FIT, TOKEN, QUESTION).await.0, 200, "permits are given back");
    }
}
