//! Restarts of the provider, of shims and of the host.

use std::collections::BTreeMap;

use vk_pod_engine::{
    ContainerBackend,
    snapshot::{ContainerState, SandboxState},
};
use vk_provider_local::{
    backend::LocalBackend,
    shim::{Shim, State},
};

use super::test_backend::{SOON, TestBackend, container, start};

const STAY: &str = "while :; do sleep 1; done";

fn pid(test_backend: &TestBackend, id: &str) -> Option<i32> {
    match Shim::at(test_backend.root().join("local/containers").join(id)).state() {
        Ok(State::Running { pid, .. }) => Some(pid),
        _ => None,
    }
}

/// The PIDs of a container's shim.
fn supervisors(test_backend: &TestBackend, id: &str) -> Vec<i32> {
    let folder = test_backend.root().join("local/containers").join(id).to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").expect("list processes").flatten();
    let found = processes.filter(|entry| {
        std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default().contains(&folder)
    });
    found.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a valid pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill the process");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn containers_survive_a_restart_of_the_provider() {
    let test_backend = TestBackend::new().await;
    let config = test_backend.sandbox("adopted");
    let (sandbox, id) = {
        let backend = test_backend.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        let id = start(&backend, &sandbox, &container("main", STAY), &config).await;
        (sandbox, id)
    };
    let before = pid(&test_backend, &id).expect("it runs");
    // Incomplete directories, as a killed process leaves them.
    let local = test_backend.root().join("local");
    std::fs::create_dir_all(local.join("containers/half/rootfs")).unwrap();
    std::fs::create_dir_all(local.join("sandboxes/half/shm")).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("x", local.join("sandboxes/half/shm"), "tmpfs", flags, c"size=4k").unwrap();

    let backend = test_backend.open().await;
    assert_eq!(pid(&test_backend, &id), Some(before));
    // Shims are not in our cgroup, where a service manager would kill them.
    let shims = format!("{}/shims", test_backend.cgroup());
    let supervised = supervisors(&test_backend, &id);
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
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_whose_shim_is_killed_is_killed_and_reported() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("lost");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let id = start(&backend, &sandbox, &container("main", STAY), &config).await;
    let init = pid(&test_backend, &id).expect("it runs");
    for supervisor in supervisors(&test_backend, &id) {
        kill(supervisor);
    }
    let over = super::test_backend::wait_for_exit(&backend, &id).await;
    assert_eq!((over.exit_code, over.reason.as_str()), (137, "Error"));
    assert!(over.finished.is_some() && over.started.is_some());
    let alive =
        std::fs::read_to_string(format!("/proc/{init}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(!alive, "nothing may run without a shim");
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn after_a_reboot_nothing_is_ready_and_everything_can_be_removed() {
    let mut test_backend = TestBackend::new().await;
    let config = test_backend.sandbox("reboot");
    let (sandbox, id) = {
        let backend = test_backend.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        (sandbox.clone(), start(&backend, &sandbox, &container("main", STAY), &config).await)
    };
    // The effect of a power loss.
    let init = pid(&test_backend, &id).expect("it runs");
    for process in supervisors(&test_backend, &id).into_iter().chain([init]) {
        kill(process);
    }
    vk_provider_local::namespace::unpin(&test_backend.root().join("local/sandboxes").join(&sandbox))
        .await
        .unwrap();
    test_backend.reboot();

    let backend = test_backend.open().await;
    assert_eq!(backend.sandbox(&sandbox).await.unwrap().state, SandboxState::NotReady);
    let over = backend.container(&id).await.unwrap();
    assert_eq!((over.state, over.exit_code), (ContainerState::Exited, 137));
    let refused = backend.create_container(&sandbox, &container("more", STAY), &config).await.unwrap_err();
    assert!(refused.message().ends_with("is not running"), "{refused}");
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_truncated_record_is_removed_unless_the_container_runs() {
    let test_backend = TestBackend::new().await;
    let config = test_backend.sandbox("damaged");
    let (sandbox, id) = {
        let backend = test_backend.open().await;
        let sandbox = backend.run_sandbox(&config).await.unwrap();
        (sandbox.clone(), start(&backend, &sandbox, &container("main", STAY), &config).await)
    };
    let local = test_backend.root().join("local");
    std::fs::create_dir_all(local.join("containers/cut")).unwrap();
    for file in ["record.json", "state.json"] {
        std::fs::write(local.join("containers/cut").join(file), "").unwrap();
    }
    let record = local.join("containers").join(&id).join("record.json");
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, "").unwrap();
    let error =
        LocalBackend::open(test_backend.settings()).await.err().expect("a running container has no record");
    assert!(error.message().contains(&id), "{error}");

    std::fs::write(&record, whole).unwrap();
    let backend = test_backend.open().await;
    assert!(!local.join("containers/cut").exists());
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}
