//! Unused objects are removed, and objects of others are kept.

use std::{fs, time::Duration};

use serde_json::json;
use vk_pod_engine::{
    ContainerBackend,
    testing::{Call, Fault},
};
use vk_provider::{PodRef, Provider, error::Kind};

use crate::support::{FOREVER, TestEngine, container, deleted, pod};

/// The logs of another node's pod.
fn foreign_logs(test: &TestEngine) -> std::path::PathBuf {
    let file = test.folder.path().join("logs/kube-system_proxy_uid-foreign/proxy/0.log");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "theirs").unwrap();
    file
}

fn logs_of(test: &TestEngine, pod: &PodRef) -> std::path::PathBuf {
    test.folder.path().join(format!("logs/{}_{}_{}", pod.namespace, pod.name, pod.uid))
}

async fn remove_all_by_hand(test: &TestEngine) {
    let backend: &dyn ContainerBackend = &test.runtime;
    for id in test.runtime.sandboxes() {
        backend.remove_sandbox(&id).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn logs_of_others_stay_and_ours_go_with_their_pod() {
    let test = TestEngine::new();
    let foreign = foreign_logs(&test);
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let ours = logs_of(&test, &made);
    assert!(ours.join("app").is_dir());
    tokio::time::sleep(Duration::from_hours(3)).await;
    assert!(foreign.exists(), "a pod that is not ours");
    assert!(ours.exists(), "a pod that runs");
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::ZERO).await.unwrap();
    test.wait_finished(&made).await;
    test.eventually("our logs go", || !ours.exists()).await;
    let notes = test.folder.path().join("root/log-directories");
    test.eventually("so does the note", || fs::read_dir(&notes).unwrap().count() == 0).await;
    tokio::time::sleep(Duration::from_hours(3)).await;
    assert!(foreign.exists());
}

#[tokio::test(start_paused = true)]
async fn logs_that_a_process_left_are_removed_by_the_next() {
    let mut test = TestEngine::new();
    let foreign = foreign_logs(&test);
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let ours = logs_of(&test, &made);
    test.close();
    // Its volumes are gone, as when it was killed in the middle of the clean-up.
    remove_all_by_hand(&test).await;
    fs::remove_dir_all(test.folder.path().join("root/pods")).unwrap();
    test.open();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(ours.exists(), "the core may tell of the pod yet");
    test.eventually("our logs go", || !ours.exists()).await;
    tokio::time::sleep(Duration::from_hours(3)).await;
    assert!(foreign.exists());
}

/// Lets the image garbage collection run a few times.
async fn looked(test: &TestEngine) {
    let before = test.runtime.count(Call::Images);
    test.eventually("images are looked at", || test.runtime.count(Call::Images) >= before + 3).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn images_in_use_by_anybody_stay_when_the_disk_is_full() {
    let test = TestEngine::new();
    let mut app = container("app", FOREVER);
    app["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let volumes =
        json!([{ "name": "data", "image": { "reference": "data:1", "pullPolicy": "IfNotPresent" } }]);
    let made = test.create(&pod("a", json!({ "containers": [app], "volumes": volumes }))).await;
    test.running(&made).await;
    let mut other = container("app", FOREVER);
    other["image"] = json!("unused:1");
    let gone = pod("b", json!({ "containers": [other] }));
    let wanted = test.create(&gone).await;
    test.running(&wanted).await;
    test.engine().delete_pod(&wanted, Some(deleted(&gone)), Duration::ZERO).await.unwrap();
    test.wait_finished(&wanted).await;
    test.runtime.foreign_image("theirs:1");
    looked(&test).await;
    assert_eq!(test.runtime.image_names().len(), 4, "there is room: {:?}", test.runtime.image_names());
    test.runtime.fill(90);
    // As long as not everything is known, nothing is removed.
    test.runtime.fault(Fault::always(Call::UsedImages, Kind::NotFound, "it went meanwhile"));
    looked(&test).await;
    assert_eq!(test.runtime.count(Call::RemoveImage), 0);
    test.runtime.clear_faults();
    looked(&test).await;
    assert_eq!(test.runtime.image_names(), ["busybox:1.37", "data:1", "theirs:1"]);
}

#[tokio::test(start_paused = true)]
async fn who_pulled_an_image_that_is_gone_is_forgotten_also_while_there_is_room() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    test.running(&made).await;
    let records = test.folder.path().join("root/images/pulled");
    let count = || fs::read_dir(&records).map_or(0, Iterator::count);
    assert_eq!(count(), 1);
    looked(&test).await;
    assert_eq!(count(), 1, "the image is there");
    let backend: &dyn ContainerBackend = &test.runtime;
    backend.remove_image("busybox:1.37").await.unwrap();
    looked(&test).await;
    assert_eq!(count(), 0);
}
