//! Files of volumes.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use vk_provider::{Resolver as _, error::Kind};

use super::desk::{Desk, next, no_more, texts};

fn volume(source: &Value) -> Value {
    let mut volume = json!({"name": "files"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    json!({"volumes": [volume]})
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_edit_of_a_config_map_reaches_the_stream_and_a_write_that_changes_nothing_does_not() {
    let desk = Desk::new("files").await;
    desk.config_map("settings", json!({"color": "blue"})).await;
    let (_, answers) = desk.pod("web", volume(&json!({"configMap": {"name": "settings"}}))).await;
    let mut files = answers.volume("files");
    let set = next(&mut files).await.unwrap();
    assert_eq!(texts(&set), [("color", "blue")]);
    assert_eq!(set.files["color"].mode, 0o644);

    desk.config_map("settings", json!({"color": "red", "size": "1"})).await;
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("color", "red"), ("size", "1")]);

    desk.put::<ConfigMap>(json!({"metadata": {"name": "settings", "labels": {"a": "b"}}})).await;
    no_more(&mut files).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_missing_secret_is_an_error_item_and_its_files_come_when_it_appears() {
    let desk = Desk::new("late").await;
    let (_, answers) = desk.pod("web", volume(&json!({"secret": {"secretName": "db"}}))).await;
    let mut files = answers.volume("files");
    let error = next(&mut files).await.unwrap_err();
    let Kind::Unresolved(reference) = error.kind() else { panic!("{error:?}") };
    assert_eq!((&*reference.name, reference.volume.as_deref()), ("db", Some("files")));
    assert_eq!(error.message(), "secret \"db\" not found");

    desk.secret("db", json!({"password": "hunter2"})).await;
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("password", "hunter2")]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_secret_that_is_deleted_while_mounted_is_an_error_item_and_its_return_gives_new_files() {
    let desk = Desk::new("gone").await;
    desk.secret("db", json!({"password": "old"})).await;
    let (_, answers) = desk.pod("web", volume(&json!({"secret": {"secretName": "db"}}))).await;
    let mut files = answers.volume("files");
    next(&mut files).await.unwrap();
    desk.remove::<Secret>("db").await;
    let error = next(&mut files).await.unwrap_err();
    assert!(matches!(error.kind(), Kind::Unresolved(_)), "{error:?}");
    desk.secret("db", json!({"password": "new"})).await;
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("password", "new")]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_immutable_object_is_not_watched() {
    let desk = Desk::new("immutable").await;
    let object = json!({"metadata": {"name": "settings"}, "data": {"a": "1"}, "immutable": true});
    desk.put::<ConfigMap>(object).await;
    let (_, answers) = desk.pod("web", volume(&json!({"configMap": {"name": "settings"}}))).await;
    let mut files = answers.volume("files");
    next(&mut files).await.unwrap();
    no_more(&mut files).await;
    assert_eq!((desk.factory.held_objects(), desk.factory.watched_objects()), (1, 0));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn new_labels_of_the_pod_reach_files_that_are_made_of_them() {
    let desk = Desk::new("labels").await;
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let (pod, answers) = desk.pod("web", volume(&json!({"downwardAPI": {"items": items}}))).await;
    let mut files = answers.volume("files");
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("labels", "app=\"web\"")]);
    let mut changed = (*pod).clone();
    changed.metadata.labels = Some([("app".to_owned(), "shop".to_owned())].into());
    answers.update(&changed.into());
    assert_eq!(texts(&next(&mut files).await.unwrap()), [("labels", "app=\"shop\"")]);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_stream_that_is_dropped_reads_no_more_and_one_of_a_pod_that_goes_ends() {
    use futures::StreamExt as _;
    let desk = Desk::new("dropped").await;
    desk.config_map("settings", json!({"a": "1"})).await;
    let (_, answers) = desk.pod("web", volume(&json!({"configMap": {"name": "settings"}}))).await;
    let mut files = answers.volume("files");
    next(&mut files).await.unwrap();
    desk.see_watching(1).await;
    drop(files);
    desk.see_watching(0).await;
    assert_eq!(desk.factory.held_objects(), 0);

    let mut files = answers.volume("files");
    next(&mut files).await.unwrap();
    answers.close();
    let end = tokio::time::timeout(crate::harness::SOON, files.next()).await.expect("an end in time");
    assert!(end.is_none(), "{end:?}");
}
