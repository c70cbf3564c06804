//! Stopping and removing containers in difficult states.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::{collections::BTreeMap, path::Path, time::Duration};

use vk_pod_engine::{ContainerBackend, backend::SandboxConfig, snapshot::ContainerState};
use vk_provider_local::{
    backend::LocalBackend,
    isolation::Isolation,
    shim::{Shim, State},
};
use vk_testing::eventually;

use super::test_backend::{SOON, TestBackend, container, log, start, wait_for_exit};

const STAY: &str = "while :; do sleep 1; done";

/// Makes the shim of a container unreachable.
fn deafen(directory: &Path) {
    let socket = directory.join("shim.sock");
    std::fs::remove_file(&socket).unwrap();
    std::os::unix::fs::symlink(&socket, &socket).unwrap();
}

async fn stops(test_backend: &TestBackend, backend: &LocalBackend, config: &SandboxConfig) {
    let sandbox = backend.run_sandbox(config).await.unwrap();
    let id = start(backend, &sandbox, &container("main", STAY), config).await;
    deafen(&test_backend.root().join("local/containers").join(&id));
    backend.stop_container(&id, Duration::from_millis(300)).await.unwrap();
    let over = wait_for_exit(backend, &id).await;
    assert_eq!((over.state, over.exit_code), (ContainerState::Exited, 137));
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_with_an_unreachable_shim_is_killed_after_the_grace_period() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    stops(&test_backend, &backend, &test_backend.sandbox("deaf")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn a_plain_process_with_an_unreachable_shim_is_killed_after_the_grace_period() {
    let test_backend = TestBackend::bare(Isolation::Process);
    let backend = test_backend.open().await;
    stops(&test_backend, &backend, &test_backend.sandbox("deaf-process")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_with_a_truncated_state_file_does_not_affect_others_and_can_be_removed() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("cut");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let good = start(&backend, &sandbox, &container("good", STAY), &config).await;
    let bad = start(&backend, &sandbox, &container("bad", STAY), &config).await;
    let directory = test_backend.root().join("local/containers").join(&bad);
    let Ok(State::Running { pid, .. }) = Shim::at(&directory).state() else { panic!("it runs") };
    // Its shim is alive: it writes the file again when the container exits.
    std::fs::write(directory.join("state.json"), "").unwrap();
    let listing = backend.list(&BTreeMap::new()).await.unwrap();
    let state = |id: &str| listing.containers.iter().find(|one| one.id == id).unwrap().state;
    assert_eq!((state(&good), state(&bad)), (ContainerState::Running, ContainerState::Unknown));
    assert_eq!(backend.container(&bad).await.unwrap().state, ContainerState::Unknown);
    backend.remove_container(&bad).await.unwrap();
    assert!(!directory.exists());
    let alive = std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(!alive, "a removed container must not run");
    assert_eq!(backend.container(&good).await.unwrap().state, ContainerState::Running);
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_that_is_removed_during_its_start_does_not_run() {
    let test_backend = TestBackend::new().await;
    let config = test_backend.sandbox("early");
    // Also by another process, which only knows what the files say.
    for other in [false, true] {
        let backend = test_backend.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        let id = backend.create_container(&sandbox, &container("main", STAY), &config).await.unwrap();
        let remover = if other { test_backend.open().await } else { backend.clone() };
        let directory = test_backend.root().join("local/containers").join(&id);
        let begun = async {
            eventually("the shim has started", SOON, || async {
                directory.join("shim.lock").exists().then_some(()).ok_or("not yet")
            })
            .await;
            remover.remove_container(&id).await
        };
        let (_, removed) = tokio::join!(backend.start_container(&id), begun);
        removed.unwrap();
        assert!(!directory.exists());
        let folder = directory.to_string_lossy().into_owned();
        let left: Vec<String> =
            test_backend.leftovers().into_iter().filter(|left| left.contains(&folder)).collect();
        assert_eq!(left, Vec::<String>::new());
        remover.remove_sandbox(&sandbox).await.unwrap();
        remover.close().await.unwrap();
        assert_eq!(test_backend.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn a_plain_process_is_stopped_by_its_signal_within_the_grace_period() {
    let test_backend = TestBackend::bare(Isolation::Process);
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("polite");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let polite = container("main", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done");
    let id = start(&backend, &sandbox, &polite, &config).await;
    eventually("it handles signals", SOON, || async {
        let container = backend.container(&id).await.map_err(|error| error.report())?;
        if log(&container) == "up\n" { Ok(()) } else { Err(log(&container)) }
    })
    .await;
    backend.stop_container(&id, SOON).await.unwrap();
    let over = wait_for_exit(&backend, &id).await;
    assert_eq!((over.exit_code, log(&over).as_str()), (3, "up\nbye\n"));
    backend.remove_sandbox(&sandbox).await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}
