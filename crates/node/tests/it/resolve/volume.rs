//! Volume streams.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use vk_provider::{Resolver as _, error::Kind, resolve::TokenLifetime};

use super::resolver_test::{ResolverTest, next, no_more, texts};

fn volume(source: &Value) -> Value {
    let mut volume = json!({"name": "files"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    json!({"volumes": [volume]})
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_edit_of_a_config_map_reaches_the_stream_and_a_write_that_changes_nothing_does_not() {
    let test = ResolverTest::new("files").await;
    test.config_map("settings", json!({"color": "blue"})).await;
    let (_, answers) = test.pod("web", volume(&json!({"configMap": {"name": "settings"}}))).await;
    let mut files = answers.volume("files", TokenLifetime::Specified);
    let set = next(&mut files).await.unwrap();
    assert_eq!(texts(&set), [("color", "blue")]);
    assert_eq!(set.files["color"].mode, 0o644);

    test.config_map("settings", json!({"color": "red", "size": "1"})).await;
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("color", "red"), ("size", "1")]);

    test.put::<ConfigMap>(json!({"metadata": {"name": "settings", "labels": {"a": "b"}}})).await;
    no_more(&mut files).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_secret_is_an_error_item_until_it_appears() {
    let test = ResolverTest::new("late").await;
    let (_, answers) = test.pod("web", volume(&json!({"secret": {"secretName": "db"}}))).await;
    let mut files = answers.volume("files", TokenLifetime::Specified);
    let error = next(&mut files).await.unwrap_err();
    let Kind::Unresolved(reference) = error.kind() else { panic!("{error:?}") };
    assert_eq!((&*reference.name, reference.volume.as_deref()), ("db", Some("files")));
    assert_eq!(error.message(), "secret \"db\" not found");

    test.secret("db", json!({"password": "hunter2"})).await;
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("password", "hunter2")]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_deleted_secret_is_an_error_item_until_it_is_created_again() {
    let test = ResolverTest::new("gone").await;
    test.secret("db", json!({"password": "old"})).await;
    let (_, answers) = test.pod("web", volume(&json!({"secret": {"secretName": "db"}}))).await;
    let mut files = answers.volume("files", TokenLifetime::Specified);
    next(&mut files).await.unwrap();
    test.remove::<Secret>("db").await;
    let error = next(&mut files).await.unwrap_err();
    assert!(matches!(error.kind(), Kind::Unresolved(_)), "{error:?}");
    test.secret("db", json!({"password": "new"})).await;
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("password", "new")]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_immutable_object_is_not_watched() {
    let test = ResolverTest::new("immutable").await;
    let object = json!({"metadata": {"name": "settings"}, "data": {"a": "1"}, "immutable": true});
    test.put::<ConfigMap>(object).await;
    let (_, answers) = test.pod("web", volume(&json!({"configMap": {"name": "settings"}}))).await;
    let mut files = answers.volume("files", TokenLifetime::Specified);
    next(&mut files).await.unwrap();
    no_more(&mut files).await;
    assert_eq!((test.factory.held_objects(), test.factory.watched_objects()), (1, 0));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn changed_labels_of_the_pod_update_downward_api_files() {
    let test = ResolverTest::new("labels").await;
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let (pod, answers) = test.pod("web", volume(&json!({"downwardAPI": {"items": items}}))).await;
    let mut files = answers.volume("files", TokenLifetime::Specified);
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("labels", "app=\"web\"")]);
    let mut changed = (*pod).clone();
    changed.metadata.labels = Some([("app".to_owned(), "shop".to_owned())].into());
    answers.update(&changed.into());
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("labels", "app=\"shop\"")]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_dropped_stream_stops_reading_and_the_stream_of_a_closed_pod_ends() {
    use futures::StreamExt as _;
    let test = ResolverTest::new("dropped").await;
    test.config_map("settings", json!({"a": "1"})).await;
    let (_, answers) = test.pod("web", volume(&json!({"configMap": {"name": "settings"}}))).await;
    let mut files = answers.volume("files", TokenLifetime::Specified);
    next(&mut files).await.unwrap();
    test.wait_for_watches(1).await;
    drop(files);
    test.wait_for_watches(0).await;
    assert_eq!(test.factory.held_objects(), 0);

    let mut files = answers.volume("files", TokenLifetime::Specified);
    next(&mut files).await.unwrap();
    answers.close();
    let end = tokio::time::timeout(crate::harness::SOON, files.next()).await.expect("an end in time");
    assert!(end.is_none(), "{end:?}");
}
