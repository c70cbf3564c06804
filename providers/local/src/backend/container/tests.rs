use std::collections::BTreeMap;

use vk_pod_engine::{
    ContainerBackend,
    backend::{ContainerSecurity, Namespaces, Resources, SandboxConfig, SandboxSecurity, Share},
};
use vk_provider::PodRef;

use super::*;
use crate::{
    backend::{Local, LocalSettings},
    image::{self, Store},
    shim::Program,
};

async fn open(folder: &Path) -> Local {
    let store = Store::open(&folder.join("images"), image::Settings::default()).unwrap();
    let program = Program { path: "/nonexistent".into(), args: vec![] };
    let settings = LocalSettings::new(folder.join("node"), program, Level::Process, store);
    Local::open(LocalSettings { host_image: true, ..settings }).await.unwrap()
}

fn sandbox(folder: &Path) -> SandboxConfig {
    SandboxConfig {
        pod: PodRef::new("default", "web", "uid-web"),
        attempt: 0,
        handler: String::new(),
        hostname: "web".to_owned(),
        log_directory: folder.join("logs").to_string_lossy().into_owned(),
        dns: None,
        ports: vec![],
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        cgroup_parent: String::new(),
        sysctls: BTreeMap::new(),
        security: SandboxSecurity {
            namespaces: Namespaces { pid: Share::Container, ..Namespaces::default() },
            ..SandboxSecurity::default()
        },
        overhead: None,
        resources: None,
    }
}

fn container() -> ContainerConfig {
    ContainerConfig {
        name: "main".to_owned(),
        attempt: 0,
        image: "host".to_owned(),
        user_image: "host".to_owned(),
        command: vec!["/bin/true".to_owned()],
        args: vec![],
        working_dir: String::new(),
        env: vec![],
        mounts: vec![],
        devices: vec![],
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        log_path: "main/0.log".to_owned(),
        stdin: false,
        stdin_once: false,
        tty: false,
        resources: Resources::default(),
        security: ContainerSecurity {
            namespaces: Namespaces { pid: Share::Container, ..Namespaces::default() },
            ..ContainerSecurity::default()
        },
        stop_signal: None,
    }
}

#[tokio::test]
async fn a_container_that_is_finished_after_its_sandbox_went_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let local = open(folder.path()).await;
    for gone in [false, true] {
        let sandbox = local.run_sandbox(&sandbox(folder.path())).await.unwrap();
        let home = local.inner.registry.lock().sandbox(&sandbox).unwrap();
        let directory = local.inner.container_directory("late");
        let record = local.inner.fill_container("late", &home, container(), &directory).unwrap();
        // Meanwhile:
        if gone {
            local.remove_sandbox(&sandbox).await.unwrap();
        } else {
            local.stop_sandbox(&sandbox).await.unwrap();
        }
        let error = local.inner.enter(record, &directory).unwrap_err();
        assert!(error.message().ends_with("is not running"), "{error}");
        assert_eq!(local.inner.registry.lock().container_ids(), Vec::<String>::new());
        leftover::bury(&directory).unwrap();
        local.remove_sandbox(&sandbox).await.unwrap();
    }
}

#[tokio::test]
async fn a_state_without_sense_is_the_loss_of_one_container_and_of_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let local = open(folder.path()).await;
    let config = sandbox(folder.path());
    let sandbox = local.run_sandbox(&config).await.unwrap();
    let mut ids = Vec::new();
    for text in [None, Some(""), Some("{\"phase\":"), Some("[]")] {
        let id = local.create_container(&sandbox, &container(), &config).await.unwrap();
        if let Some(text) = text {
            std::fs::write(local.inner.container_directory(&id).join("state.json"), text).unwrap();
        }
        ids.push(id);
    }
    // No file but something else: that is no loss of power, and no reason to say that it ended.
    let id = local.create_container(&sandbox, &container(), &config).await.unwrap();
    std::fs::create_dir(local.inner.container_directory(&id).join("state.json")).unwrap();
    ids.push(id);
    let listing = local.list(&BTreeMap::new()).await.unwrap();
    let state = |id: &String| listing.containers.iter().find(|one| one.id == *id).unwrap().state;
    let states: Vec<ContainerState> = ids.iter().map(state).collect();
    let lost = ContainerState::Exited;
    assert_eq!(states, [ContainerState::Created, lost, lost, lost, ContainerState::Unknown]);
    let told = local.container(&ids[1]).await.unwrap();
    assert_eq!((told.state, told.exit_code, told.reason.as_str()), (lost, 137, "Error"));
    assert_eq!(local.container(&ids[4]).await.unwrap().state, ContainerState::Unknown);
    for id in &ids {
        local.stop_container(id, std::time::Duration::from_secs(30)).await.unwrap();
        local.remove_container(id).await.unwrap();
        assert!(!local.inner.container_directory(id).exists());
    }
    local.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test]
async fn what_is_removed_waits_for_a_start_that_is_under_way_and_is_not_started_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let local = open(folder.path()).await;
    let config = sandbox(folder.path());
    let sandbox = local.run_sandbox(&config).await.unwrap();
    let id = local.create_container(&sandbox, &container(), &config).await.unwrap();
    let known = local.inner.registry.lock().container(&id).unwrap();
    let directory = local.inner.container_directory(&id);
    let start = known.start.lock().await;
    {
        let mut removal = std::pin::pin!(local.remove_container(&id));
        let early = tokio::time::timeout(std::time::Duration::from_millis(200), &mut removal).await;
        assert!(early.is_err() && directory.exists(), "it is being started");
        let mut second = std::pin::pin!(local.start_container(&id));
        assert!(futures::poll!(&mut second).is_pending());
        drop(start);
        removal.await.unwrap();
        assert!(!directory.exists());
        assert_eq!(*second.await.unwrap_err().kind(), Kind::NotFound);
    }
    local.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test]
async fn a_clean_up_that_takes_long_holds_no_listing_up() {
    let folder = tempfile::tempdir().unwrap();
    let local = open(folder.path()).await;
    let config = sandbox(folder.path());
    let sandbox = local.run_sandbox(&config).await.unwrap();
    let id = local.create_container(&sandbox, &container(), &config).await.unwrap();
    // It ran, by a number that no process can have, and its supervisor is gone.
    let lost = r#"{"phase":"running","pid":2147483647,"started":"2026-11-15T16:30:00Z"}"#;
    std::fs::write(local.inner.container_directory(&id).join("state.json"), lost).unwrap();
    let known = local.inner.registry.lock().container(&id).unwrap();
    let burial = known.burial.lock().await;
    assert_eq!(local.list(&BTreeMap::new()).await.unwrap().containers[0].state, ContainerState::Unknown);
    assert_eq!(local.container(&id).await.unwrap().state, ContainerState::Unknown);
    drop(burial);
    assert_eq!(local.list(&BTreeMap::new()).await.unwrap().containers[0].state, ContainerState::Exited);
    local.remove_sandbox(&sandbox).await.unwrap();
}
