//! Adoption of the containers of an earlier process.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::json;
use vk_pod_engine::{snapshot::label, testing::Call};
use vk_provider::{PodRef, Provider};

use crate::support::{FOREVER, TestEngine, container, container_status, deleted, is_running, pod, waiting};

#[tokio::test(start_paused = true)]
async fn the_next_process_lists_and_adopts_without_a_restart() {
    let mut test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER), container("other", FOREVER)] }));
    let made = test.create(&wanted).await;
    let before = test.running(&made).await;
    let calls = [Call::RunSandbox, Call::CreateContainer, Call::StopContainer, Call::StopSandbox];
    let counts = calls.map(|call| test.runtime.count(call));
    test.close();
    tokio::time::sleep(Duration::from_mins(1)).await;
    test.open();
    let listed = test.engine().pods().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].pod, listed[0].node.as_deref()), (&made, Some("node-1")));
    assert_eq!(
        container_status(&listed[0].status, "app").container_id,
        container_status(&before, "app").container_id
    );
    tokio::time::sleep(Duration::from_mins(5)).await;
    test.create(&wanted).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let after = test.status(&made).await;
    assert!(is_running(&after));
    for name in ["app", "other"] {
        assert_eq!(container_status(&after, name).container_id, container_status(&before, name).container_id);
        assert_eq!(container_status(&after, name).restart_count, 0);
    }
    assert_eq!(calls.map(|call| test.runtime.count(call)), counts);
}

#[tokio::test(start_paused = true)]
async fn until_it_is_adopted_a_pod_is_shown_as_the_process_before_showed_it() {
    let mut test = TestEngine::new();
    let mut app = container("app", FOREVER);
    app["readinessProbe"] = json!({ "exec": { "command": ["test", "-f", "/ready"] }, "periodSeconds": 1 });
    test.runtime.touch("app", "/ready");
    let wanted = pod("a", json!({ "initContainers": [container("setup", "sleep 1")], "containers": [app] }));
    let made = test.create(&wanted).await;
    let before = test.until(&made, "it is ready", |status| container_status(status, "app").ready).await;
    let ended = pod("b", json!({ "restartPolicy": "Never", "containers": [container("app", "sleep 1")] }));
    let ended = test.create(&ended).await;
    let over = test.until(&ended, "it ends", |status| status.phase.as_deref() == Some("Succeeded")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    test.close();
    test.open();
    let listed = test.engine().pods().await.unwrap();
    let status = |pod: &PodRef| &listed.iter().find(|observed| observed.pod == *pod).unwrap().status;
    assert_eq!(status(&made).init_container_statuses, before.init_container_statuses);
    assert_eq!(status(&made).container_statuses, before.container_statuses);
    assert_eq!(status(&made).phase, before.phase);
    assert_eq!(status(&ended).phase, over.phase);
    assert_eq!(status(&ended).container_statuses, over.container_statuses);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_found_by_its_marks_where_nothing_else_is_left() {
    let mut test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    let before = test.running(&made).await;
    test.close();
    std::fs::remove_dir_all(test.folder.path().join("root")).unwrap();
    test.open();
    let listed = test.engine().pods().await.unwrap();
    assert_eq!(listed[0].pod, made);
    assert_eq!(
        container_status(&listed[0].status, "app").container_id,
        container_status(&before, "app").container_id
    );
    test.create(&wanted).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    let after = test.status(&made).await;
    assert_eq!(container_status(&after, "app").container_id, container_status(&before, "app").container_id);
    assert_eq!(container_status(&after, "app").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn back_off_goes_on_in_the_next_process() {
    let mut test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", "sleep 1; exit 1")] }));
    let made = test.create(&wanted).await;
    let status = test
        .until(&made, "the third crash", |status| {
            let app = container_status(status, "app");
            app.restart_count == 3 && waiting(app) == "CrashLoopBackOff"
        })
        .await;
    test.close();
    test.open();
    // The core hands over the pod as the API server has it: with the status that was written last.
    let mut known = (*wanted).clone();
    known.status = Some(status);
    let begun = tokio::time::Instant::now();
    test.create(&Arc::new(known)).await;
    test.until(&made, "the fourth restart", |status| container_status(status, "app").restart_count == 4)
        .await;
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(30) && waited < Duration::from_secs(45), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nobody_asks_for_is_left_alone() {
    let mut test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let before = test.runtime.containers();
    test.close();
    test.open();
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(test.runtime.containers(), before);
    assert!(test.folder.path().join("root/pods").join(&*made.uid).exists());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_never_touched() {
    let test = TestEngine::new();
    let marks = |node: Option<&str>, uid: &str| {
        let mut labels: BTreeMap<String, String> = [
            (label::POD_UID.to_owned(), uid.to_owned()),
            (label::POD_NAME.to_owned(), "foreign".to_owned()),
            (label::POD_NAMESPACE.to_owned(), "default".to_owned()),
        ]
        .into();
        labels.extend(node.map(|node| (label::NODE.to_owned(), node.to_owned())));
        labels
    };
    let foreign = [
        test.runtime.foreign(marks(None, "uid-c")),
        test.runtime.foreign(marks(Some("other-node"), "uid-b")),
        test.runtime.foreign(BTreeMap::new()),
    ];
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    assert_eq!(test.engine().pods().await.unwrap().len(), 1);
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::ZERO).await.unwrap();
    test.wait_finished(&made).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let mut left = test.runtime.sandboxes();
    left.sort();
    let mut expected = foreign.to_vec();
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(test.runtime.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn directories_of_a_pod_that_is_gone_are_removed_in_the_end() {
    let mut test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    test.close();
    // The containers are removed externally while no engine runs.
    let backend: &dyn vk_pod_engine::ContainerBackend = &test.runtime;
    for id in test.runtime.sandboxes() {
        backend.remove_sandbox(&id).await.unwrap();
    }
    test.open();
    let folder = test.folder.path().join("root/pods").join(&*made.uid);
    assert!(folder.exists());
    test.eventually("the directory is removed", || !folder.exists()).await;
    let logs = std::fs::read_dir(test.folder.path().join("logs")).unwrap().count();
    assert_eq!(logs, 0);
}
