//! How much is watched, and what happens beyond.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use vk_node::resolve::Limits;
use vk_provider::{Resolver as _, resolve::Facts};

use super::desk::{Desk, Setup, next, texts};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn pods_that_need_the_same_object_share_one_watch() {
    let desk = Desk::new("shared").await;
    desk.config_map("settings", json!({"a": "1"})).await;
    let spec = json!({"volumes": [{"name": "files", "configMap": {"name": "settings"}}]});
    let mut all = Vec::new();
    for index in 0..5 {
        let (_, answers) = desk.pod(&format!("web-{index}"), spec.clone()).await;
        let mut files = answers.volume("files");
        next(&mut files).await.unwrap();
        all.push((answers, files));
    }
    desk.see_watching(1).await;
    assert_eq!(desk.factory.held_objects(), 1);
    while let Some(last) = all.pop() {
        assert_eq!(desk.factory.watched_objects(), 1, "with {} pods", all.len() + 1);
        drop(last);
    }
    desk.see_watching(0).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn beyond_the_limit_objects_are_read_again_now_and_then() {
    let limits = Limits { watches: 1, ttl: Duration::from_millis(200), ..Limits::default() };
    let desk = Desk::with("beyond", Setup { limits, ..Setup::default() }).await;
    let mut streams = Vec::new();
    for name in ["a", "b", "c"] {
        desk.config_map(name, json!({"value": "1"})).await;
        let spec = json!({"volumes": [{"name": "files", "configMap": {"name": name}}]});
        let (_, answers) = desk.pod(&format!("web-{name}"), spec).await;
        let mut files = answers.volume("files");
        next(&mut files).await.unwrap();
        streams.push((name, files, answers));
    }
    desk.see_watching(1).await;
    for (name, files, _) in &mut streams {
        desk.config_map(name, json!({"value": "2"})).await;
        assert_eq!(texts(&next(files).await.unwrap()), [("value", "2")], "{name}");
    }
    assert_eq!(desk.factory.watched_objects(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_asks_right_after_it_was_bound_is_not_refused() {
    let desk = Desk::new("trailing").await;
    let asked = (0..60).map(|index| {
        let desk = &desk;
        async move {
            let name = format!("own-{index}");
            desk.secret(&name, json!({"value": name})).await;
            let from = json!([{"secretRef": {"name": name}}]);
            let container = json!([{"name": "main", "image": "example.com/app:1", "envFrom": from}]);
            let (_, answers) = desk.pod(&format!("web-{index}"), json!({"containers": container})).await;
            let inputs = answers.container("main", &Facts::default()).await.unwrap();
            assert!(inputs.env.contains(&("value".to_owned(), name)));
        }
    });
    join_all(asked).await;
}
