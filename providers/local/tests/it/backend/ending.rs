//! Containers that do not make it easy to end them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::{collections::BTreeMap, path::Path, time::Duration};

use vk_pod_engine::{ContainerBackend, backend::SandboxConfig, snapshot::ContainerState};
use vk_provider_local::{
    backend::Local,
    level::Level,
    shim::{Shim, State},
};
use vk_testing::eventually;

use super::place::{Place, SOON, container, ended, log, start};

const STAY: &str = "while :; do sleep 1; done";

/// A supervisor that nobody can speak to any more.
fn deafen(directory: &Path) {
    let socket = directory.join("shim.sock");
    std::fs::remove_file(&socket).unwrap();
    std::os::unix::fs::symlink(&socket, &socket).unwrap();
}

async fn stops(place: &Place, backend: &Local, config: &SandboxConfig) {
    let sandbox = backend.run_sandbox(config).await.unwrap();
    let id = start(backend, &sandbox, &container("main", STAY), config).await;
    deafen(&place.root().join("local/containers").join(&id));
    backend.stop_container(&id, Duration::from_millis(300)).await.unwrap();
    let over = ended(backend, &id).await;
    assert_eq!((over.state, over.exit_code), (ContainerState::Exited, 137));
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_whose_supervisor_does_not_answer_is_killed_when_its_time_is_over() {
    let place = Place::new().await;
    let backend = place.open().await;
    stops(&place, &backend, &place.sandbox("deaf")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn a_plain_process_whose_supervisor_does_not_answer_is_killed_when_its_time_is_over() {
    let place = Place::bare(Level::Process);
    let backend = place.open().await;
    stops(&place, &backend, &place.sandbox("deaf-process")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_whose_state_was_cut_off_hides_no_other_and_can_be_removed() {
    let place = Place::new().await;
    let backend = place.open().await;
    let config = place.sandbox("cut");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let good = start(&backend, &sandbox, &container("good", STAY), &config).await;
    let bad = start(&backend, &sandbox, &container("bad", STAY), &config).await;
    let directory = place.root().join("local/containers").join(&bad);
    let Ok(State::Running { pid, .. }) = Shim::at(&directory).state() else { panic!("it runs") };
    // Its supervisor lives: nobody knows better than it, and it writes the file again when the container ends.
    std::fs::write(directory.join("state.json"), "").unwrap();
    let listing = backend.list(&BTreeMap::new()).await.unwrap();
    let state = |id: &str| listing.containers.iter().find(|one| one.id == id).unwrap().state;
    assert_eq!((state(&good), state(&bad)), (ContainerState::Running, ContainerState::Unknown));
    assert_eq!(backend.container(&bad).await.unwrap().state, ContainerState::Unknown);
    backend.remove_container(&bad).await.unwrap();
    assert!(!directory.exists());
    let alive = std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(!alive, "what is removed does not run");
    assert_eq!(backend.container(&good).await.unwrap().state, ContainerState::Running);
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_that_is_removed_while_it_is_started_does_not_run_afterwards() {
    let place = Place::new().await;
    let config = place.sandbox("early");
    // By another process of ours too, which knows nothing of the start but what the files say.
    for other in [false, true] {
        let backend = place.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        let id = backend.create_container(&sandbox, &container("main", STAY), &config).await.unwrap();
        let remover = if other { place.open().await } else { backend.clone() };
        let directory = place.root().join("local/containers").join(&id);
        let begun = async {
            eventually("a supervisor is at it", SOON, || async {
                directory.join("shim.lock").exists().then_some(()).ok_or("not yet")
            })
            .await;
            remover.remove_container(&id).await
        };
        let (_, removed) = tokio::join!(backend.start_container(&id), begun);
        removed.unwrap();
        assert!(!directory.exists());
        let folder = directory.to_string_lossy().into_owned();
        let left: Vec<String> = place.leftovers().into_iter().filter(|left| left.contains(&folder)).collect();
        assert_eq!(left, Vec::<String>::new());
        remover.remove_sandbox(&sandbox).await.unwrap();
        remover.close().await.unwrap();
        assert_eq!(place.leftovers(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn a_plain_process_is_stopped_by_its_signal_within_its_time() {
    let place = Place::bare(Level::Process);
    let backend = place.open().await;
    let config = place.sandbox("polite");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let polite = container("main", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done");
    let id = start(&backend, &sandbox, &polite, &config).await;
    eventually("it listens", SOON, || async {
        let container = backend.container(&id).await.map_err(|error| error.report())?;
        if log(&container) == "up\n" { Ok(()) } else { Err(log(&container)) }
    })
    .await;
    backend.stop_container(&id, SOON).await.unwrap();
    let over = ended(&backend, &id).await;
    assert_eq!((over.exit_code, log(&over).as_str()), (3, "up\nbye\n"));
    backend.remove_sandbox(&sandbox).await.unwrap();
    assert_eq!(place.leftovers(), Vec::<String>::new());
}
