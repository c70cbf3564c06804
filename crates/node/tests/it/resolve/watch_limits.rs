//! The limit of watches, and polling beyond it.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use vk_node::resolve::Limits;
use vk_provider::{
    Resolver as _,
    resolve::{Facts, TokenLifetime},
};

use super::resolver_test::{ResolverTest, Setup, next, texts};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn pods_that_need_the_same_object_share_one_watch() {
    let test = ResolverTest::new("shared").await;
    test.config_map("settings", json!({"a": "1"})).await;
    let spec = json!({"volumes": [{"name": "files", "configMap": {"name": "settings"}}]});
    let mut all = Vec::new();
    for index in 0..5 {
        let (_, answers) = test.pod(&format!("web-{index}"), spec.clone()).await;
        let mut files = answers.volume("files", TokenLifetime::Specified);
        next(&mut files).await.unwrap();
        all.push((answers, files));
    }
    test.wait_for_watches(1).await;
    assert_eq!(test.factory.held_objects(), 1);
    while let Some(last) = all.pop() {
        assert_eq!(test.factory.watched_objects(), 1, "with {} pods", all.len() + 1);
        drop(last);
    }
    test.wait_for_watches(0).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn objects_beyond_the_watch_limit_are_polled() {
    let limits = Limits { watches: 1, ttl: Duration::from_millis(200), ..Limits::default() };
    let test = ResolverTest::with("beyond", Setup { limits, ..Setup::default() }).await;
    let mut streams = Vec::new();
    for name in ["a", "b", "c"] {
        test.config_map(name, json!({"value": "1"})).await;
        let spec = json!({"volumes": [{"name": "files", "configMap": {"name": name}}]});
        let (_, answers) = test.pod(&format!("web-{name}"), spec).await;
        let mut files = answers.volume("files", TokenLifetime::Specified);
        next(&mut files).await.unwrap();
        streams.push((name, files, answers));
    }
    test.wait_for_watches(1).await;
    for (name, files, _) in &mut streams {
        test.config_map(name, json!({"value": "2"})).await;
        assert_eq!(texts(&next(files).await.unwrap()), [("value", "2")], "{name}");
    }
    assert_eq!(test.factory.watched_objects(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_read_right_after_the_binding_waits_for_the_node_authorizer() {
    let test = ResolverTest::new("trailing").await;
    let asked = (0..60).map(|index| {
        let test = &test;
        async move {
            let name = format!("own-{index}");
            test.secret(&name, json!({"value": name})).await;
            let from = json!([{"secretRef": {"name": name}}]);
            let container = json!([{"name": "main", "image": "example.com/app:1", "envFrom": from}]);
            let (_, answers) = test.pod(&format!("web-{index}"), json!({"containers": container})).await;
            let inputs = answers.container("main", &Facts::default()).await.unwrap();
            assert!(inputs.pairs().contains(&("value".to_owned(), name)));
        }
    });
    join_all(asked).await;
}
