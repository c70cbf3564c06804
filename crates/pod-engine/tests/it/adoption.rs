//! Adoption of the containers of an earlier process.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::json;
use vk_pod_engine::{snapshot::label, testing::Call};
use vk_provider::{PodRef, Provider};

use crate::support::{FOREVER, World, container, deleted, is_running, one, pod, waiting};

#[tokio::test(start_paused = true)]
async fn the_next_process_lists_and_adopts_without_a_restart() {
    let mut world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER), container("other", FOREVER)] }));
    let made = world.create(&wanted).await;
    let before = world.running(&made).await;
    let calls = [Call::RunSandbox, Call::CreateContainer, Call::StopContainer, Call::StopSandbox];
    let counts = calls.map(|call| world.runtime.count(call));
    world.close();
    tokio::time::sleep(Duration::from_mins(1)).await;
    world.open();
    let listed = world.engine().pods().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].pod, listed[0].node.as_deref()), (&made, Some("node-1")));
    assert_eq!(one(&listed[0].status, "app").container_id, one(&before, "app").container_id);
    tokio::time::sleep(Duration::from_mins(5)).await;
    world.create(&wanted).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let after = world.status(&made).await;
    assert!(is_running(&after));
    for name in ["app", "other"] {
        assert_eq!(one(&after, name).container_id, one(&before, name).container_id);
        assert_eq!(one(&after, name).restart_count, 0);
    }
    assert_eq!(calls.map(|call| world.runtime.count(call)), counts);
}

#[tokio::test(start_paused = true)]
async fn until_it_is_adopted_a_pod_is_shown_as_the_process_before_showed_it() {
    let mut world = World::new();
    let mut app = container("app", FOREVER);
    app["readinessProbe"] = json!({ "exec": { "command": ["test", "-f", "/ready"] }, "periodSeconds": 1 });
    world.runtime.touch("app", "/ready");
    let wanted = pod("a", json!({ "initContainers": [container("setup", "sleep 1")], "containers": [app] }));
    let made = world.create(&wanted).await;
    let before = world.until(&made, "it is ready", |status| one(status, "app").ready).await;
    let ended = pod("b", json!({ "restartPolicy": "Never", "containers": [container("app", "sleep 1")] }));
    let ended = world.create(&ended).await;
    let over = world.until(&ended, "it ends", |status| status.phase.as_deref() == Some("Succeeded")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    world.close();
    world.open();
    let listed = world.engine().pods().await.unwrap();
    let status = |pod: &PodRef| &listed.iter().find(|observed| observed.pod == *pod).unwrap().status;
    assert_eq!(status(&made).init_container_statuses, before.init_container_statuses);
    assert_eq!(status(&made).container_statuses, before.container_statuses);
    assert_eq!(status(&made).phase, before.phase);
    assert_eq!(status(&ended).phase, over.phase);
    assert_eq!(status(&ended).container_statuses, over.container_statuses);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_found_by_its_marks_where_nothing_else_is_left() {
    let mut world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = world.create(&wanted).await;
    let before = world.running(&made).await;
    world.close();
    std::fs::remove_dir_all(world.folder.path().join("root")).unwrap();
    world.open();
    let listed = world.engine().pods().await.unwrap();
    assert_eq!(listed[0].pod, made);
    assert_eq!(one(&listed[0].status, "app").container_id, one(&before, "app").container_id);
    world.create(&wanted).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    let after = world.status(&made).await;
    assert_eq!(one(&after, "app").container_id, one(&before, "app").container_id);
    assert_eq!(one(&after, "app").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn back_off_goes_on_in_the_next_process() {
    let mut world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", "sleep 1; exit 1")] }));
    let made = world.create(&wanted).await;
    let status = world
        .until(&made, "the third crash", |status| {
            let app = one(status, "app");
            app.restart_count == 3 && waiting(app) == "CrashLoopBackOff"
        })
        .await;
    world.close();
    world.open();
    // The core hands over the pod as the API server has it: with the status that was written last.
    let mut known = (*wanted).clone();
    known.status = Some(status);
    let begun = tokio::time::Instant::now();
    world.create(&Arc::new(known)).await;
    world.until(&made, "the fourth restart", |status| one(status, "app").restart_count == 4).await;
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(30) && waited < Duration::from_secs(45), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nobody_asks_for_is_left_alone() {
    let mut world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = world.create(&wanted).await;
    world.running(&made).await;
    let before = world.runtime.containers();
    world.close();
    world.open();
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(world.runtime.containers(), before);
    assert!(world.folder.path().join("root/pods").join(&*made.uid).exists());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_never_touched() {
    let world = World::new();
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
        world.runtime.foreign(marks(None, "uid-c")),
        world.runtime.foreign(marks(Some("other-node"), "uid-b")),
        world.runtime.foreign(BTreeMap::new()),
    ];
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = world.create(&wanted).await;
    world.running(&made).await;
    assert_eq!(world.engine().pods().await.unwrap().len(), 1);
    world.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::ZERO).await.unwrap();
    world.over(&made).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let mut left = world.runtime.sandboxes();
    left.sort();
    let mut expected = foreign.to_vec();
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(world.runtime.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn directories_of_a_pod_that_is_gone_are_removed_in_the_end() {
    let mut world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = world.create(&wanted).await;
    world.running(&made).await;
    world.close();
    // Somebody removes the containers by hand while nobody looks.
    let backend: &dyn vk_pod_engine::ContainerBackend = &world.runtime;
    for id in world.runtime.sandboxes() {
        backend.remove_sandbox(&id).await.unwrap();
    }
    world.open();
    let folder = world.folder.path().join("root/pods").join(&*made.uid);
    assert!(folder.exists());
    world.eventually("the directory is removed", || !folder.exists()).await;
    let logs = std::fs::read_dir(world.folder.path().join("logs")).unwrap().count();
    assert_eq!(logs, 0);
}
