//! What survives whom.

use std::collections::BTreeMap;

use vk_pod_engine::{
    ContainerBackend,
    snapshot::{ContainerState, SandboxState},
};
use vk_provider_local::{
    backend::Local,
    shim::{Shim, State},
};

use super::place::{Place, SOON, container, start};

const STAY: &str = "while :; do sleep 1; done";

fn pid(place: &Place, id: &str) -> Option<i32> {
    match Shim::at(place.root().join("local/containers").join(id)).state() {
        Ok(State::Running { pid, .. }) => Some(pid),
        _ => None,
    }
}

/// The processes that supervise a container.
fn supervisors(place: &Place, id: &str) -> Vec<i32> {
    let folder = place.root().join("local/containers").join(id).to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let found = processes.filter(|entry| {
        std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default().contains(&folder)
    });
    found.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn containers_run_on_while_nobody_is_there_and_are_adopted() {
    let place = Place::new().await;
    let config = place.sandbox("adopted");
    let (sandbox, id) = {
        let backend = place.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        let id = start(&backend, &sandbox, &container("main", STAY), &config).await;
        (sandbox, id)
    };
    let before = pid(&place, &id).expect("it runs");
    // Halves of what was being made, as a kill leaves them.
    let local = place.root().join("local");
    std::fs::create_dir_all(local.join("containers/half/rootfs")).unwrap();
    std::fs::create_dir_all(local.join("sandboxes/half/shm")).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("x", local.join("sandboxes/half/shm"), "tmpfs", flags, c"size=4k").unwrap();

    let backend = place.open().await;
    assert_eq!(pid(&place, &id), Some(before));
    // Not with us, with whom a service manager would end them.
    let shims = format!("{}/shims", place.cgroup());
    let supervised = supervisors(&place, &id);
    assert!(!supervised.is_empty());
    for pid in supervised {
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        assert!(cgroups.lines().any(|line| line.ends_with(&shims)), "{cgroups}");
    }
    let listing = backend.list(&BTreeMap::default()).await.unwrap();
    assert_eq!(listing.sandboxes.len(), 1);
    assert_eq!(
        (listing.sandboxes[0].id.as_str(), listing.sandboxes[0].state),
        (sandbox.as_str(), SandboxState::Ready)
    );
    assert_eq!(
        (listing.containers[0].id.as_str(), listing.containers[0].state),
        (id.as_str(), ContainerState::Running)
    );
    assert!(!local.join("containers/half").exists() && !local.join("sandboxes/half").exists());
    let ran = backend.run(&id, &["/bin/true".into()], SOON).await.unwrap();
    assert!(matches!(ran, vk_pod_engine::backend::ExecOutput::Exited { code: 0, .. }), "{ran:?}");
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_whose_supervisor_is_killed_is_ended_and_told_of() {
    let place = Place::new().await;
    let backend = place.open().await;
    let config = place.sandbox("lost");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let id = start(&backend, &sandbox, &container("main", STAY), &config).await;
    let init = pid(&place, &id).expect("it runs");
    for supervisor in supervisors(&place, &id) {
        kill(supervisor);
    }
    let over = super::place::ended(&backend, &id).await;
    assert_eq!((over.exit_code, over.reason.as_str()), (137, "Error"));
    assert!(over.finished.is_some() && over.started.is_some());
    let alive =
        std::fs::read_to_string(format!("/proc/{init}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(!alive, "nothing runs without its owner");
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn after_a_restart_of_the_machine_nothing_is_ready_and_everything_can_be_removed() {
    let mut place = Place::new().await;
    let config = place.sandbox("reboot");
    let (sandbox, id) = {
        let backend = place.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        (sandbox.clone(), start(&backend, &sandbox, &container("main", STAY), &config).await)
    };
    // What a machine that is switched off does.
    let init = pid(&place, &id).expect("it runs");
    for process in supervisors(&place, &id).into_iter().chain([init]) {
        kill(process);
    }
    vk_provider_local::namespace::unpin(&place.root().join("local/sandboxes").join(&sandbox)).await.unwrap();
    place.reboot();

    let backend = place.open().await;
    assert_eq!(backend.sandbox(&sandbox).await.unwrap().state, SandboxState::NotReady);
    let over = backend.container(&id).await.unwrap();
    assert_eq!((over.state, over.exit_code), (ContainerState::Exited, 137));
    let refused = backend.create_container(&sandbox, &container("more", STAY), &config).await.unwrap_err();
    assert!(refused.message().ends_with("is not running"), "{refused}");
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_record_that_was_cut_off_is_removed_unless_something_runs_there() {
    let place = Place::new().await;
    let config = place.sandbox("damaged");
    let (sandbox, id) = {
        let backend = place.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        (sandbox.clone(), start(&backend, &sandbox, &container("main", STAY), &config).await)
    };
    let local = place.root().join("local");
    std::fs::create_dir_all(local.join("containers/cut")).unwrap();
    for file in ["record.json", "state.json"] {
        std::fs::write(local.join("containers/cut").join(file), "").unwrap();
    }
    let record = local.join("containers").join(&id).join("record.json");
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, "").unwrap();
    let error = Local::open(place.settings()).await.err().expect("a container that nobody knows runs");
    assert!(error.message().contains(&id), "{error}");

    std::fs::write(&record, whole).unwrap();
    let backend = place.open().await;
    assert!(!local.join("containers/cut").exists());
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(place.leftovers(), Vec::<String>::new());
}
