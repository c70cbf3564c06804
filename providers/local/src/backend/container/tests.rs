use std::collections::BTreeMap;

use vk_pod_engine::{
    ContainerBackend,
    backend::{ContainerSecurity, Namespaces, Resources, SandboxConfig, SandboxSecurity, Share},
};
use vk_provider::PodRef;

use super::*;
use crate::{
    backend::{LocalBackend, LocalBackendSettings},
    image::{self, Store},
    shim::Program,
};

async fn open(folder: &Path) -> LocalBackend {
    let store = Store::open(&folder.join("images"), image::Settings::default()).unwrap();
    let program = Program { path: "/nonexistent".into(), args: vec![] };
    let settings = LocalBackendSettings::new(folder.join("node"), program, Isolation::Process, store);
    LocalBackend::open(LocalBackendSettings { host_image: true, ..settings }).await.unwrap()
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
async fn a_container_is_not_registered_after_its_sandbox_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let local = open(folder.path()).await;
    for gone in [false, true] {
        let sandbox = local.run_sandbox(&sandbox(folder.path())).await.unwrap();
        let home = local.inner.store.lock().sandbox(&sandbox).unwrap();
        let directory = local.inner.container_directory("late");
        let (record, process) = local.inner.write_container("late", &home, container(), &directory).unwrap();
        // Meanwhile the sandbox is stopped or removed.
        if gone {
            local.remove_sandbox(&sandbox).await.unwrap();
        } else {
            local.stop_sandbox(&sandbox).await.unwrap();
        }
        let error = local.inner.register(record, process, &directory).unwrap_err();
        assert!(error.message().ends_with("is not running"), "{error}");
        assert_eq!(local.inner.store.lock().container_ids(), Vec::<String>::new());
        recovery::remove_directory(&directory).unwrap();
        local.remove_sandbox(&sandbox).await.unwrap();
    }
}

#[tokio::test]
async fn a_malformed_state_file_only_affects_its_own_container() {
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
    // Not a file: not the effect of a power loss, so the container does not count as exited.
    let id = local.create_container(&sandbox, &container(), &config).await.unwrap();
    std::fs::create_dir(local.inner.container_directory(&id).join("state.json")).unwrap();
    ids.push(id);
    let listing = local.list(&BTreeMap::new()).await.unwrap();
    let state = |id: &String| listing.containers.iter().find(|one| one.id == *id).unwrap().state;
    let states: Vec<ContainerState> = ids.iter().map(state).collect();
    let lost = ContainerState::Exited;
    assert_eq!(states, [ContainerState::Created, lost, lost, lost, ContainerState::Unknown]);
    let container = local.container(&ids[1]).await.unwrap();
    assert_eq!((container.state, container.exit_code, container.reason.as_str()), (lost, 137, "Error"));
    assert_eq!(local.container(&ids[4]).await.unwrap().state, ContainerState::Unknown);
    for id in &ids {
        local.stop_container(id, std::time::Duration::from_secs(30)).await.unwrap();
        local.remove_container(id).await.unwrap();
        assert!(!local.inner.container_directory(id).exists());
    }
    local.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test]
async fn a_removal_waits_for_a_start_in_progress_and_prevents_later_ones() {
    let folder = tempfile::tempdir().unwrap();
    let local = open(folder.path()).await;
    let config = sandbox(folder.path());
    let sandbox = local.run_sandbox(&config).await.unwrap();
    let id = local.create_container(&sandbox, &container(), &config).await.unwrap();
    let entry = local.inner.store.lock().container(&id).unwrap();
    let directory = local.inner.container_directory(&id);
    let start = entry.start.lock().await;
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
async fn a_slow_cleanup_does_not_delay_listings() {
    let folder = tempfile::tempdir().unwrap();
    let local = open(folder.path()).await;
    let config = sandbox(folder.path());
    let sandbox = local.run_sandbox(&config).await.unwrap();
    let id = local.create_container(&sandbox, &container(), &config).await.unwrap();
    // It ran with a PID that no process can have, and its shim is gone.
    let lost = r#"{"phase":"running","pid":2147483647,"started":"2026-11-15T16:30:00Z"}"#;
    std::fs::write(local.inner.container_directory(&id).join("state.json"), lost).unwrap();
    let entry = local.inner.store.lock().container(&id).unwrap();
    let cleanup = entry.cleanup.lock().await;
    assert_eq!(local.list(&BTreeMap::new()).await.unwrap().containers[0].state, ContainerState::Unknown);
    assert_eq!(local.container(&id).await.unwrap().state, ContainerState::Unknown);
    drop(cleanup);
    assert_eq!(local.list(&BTreeMap::new()).await.unwrap().containers[0].state, ContainerState::Exited);
    local.remove_sandbox(&sandbox).await.unwrap();
}
