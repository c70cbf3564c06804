//! The lifecycle of a pod.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use futures::StreamExt;
use tokio::io::AsyncReadExt;
use vk_pod_engine::{
    ContainerBackend,
    backend::{ExecOutput, Share},
    snapshot::{ContainerState, SandboxState},
};
use vk_provider::{
    ability::{ExecOptions, Started},
    error::Kind,
};

use super::test_backend::{SOON, TestBackend, container, log, script_output, start, wait_for_exit};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_pod_runs_and_leaves_nothing_behind() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("life");
    let mut events = backend.events().expect("events");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let status = backend.sandbox(&sandbox).await.unwrap();
    assert_eq!(status.state, SandboxState::Ready);
    assert_eq!(status.ips.len(), 1);
    assert!(!status.host_network);

    let main = container(
        "main",
        "echo $GREETING; echo $HOSTNAME; trap 'exit 3' TERM; while :; do sleep 1 & wait $!; done",
    );
    let id = start(&backend, &sandbox, &main, &config).await;
    let running = backend.container(&id).await.unwrap();
    assert_eq!((running.state, running.name.as_str()), (ContainerState::Running, "main"));
    assert!(running.started.is_some() && running.image_id.starts_with("sha256:"));
    vk_testing::eventually("it has written its output", SOON, || {
        let text = log(&running);
        async move { if text == "hello\nlife\n" { Ok(()) } else { Err(text) } }
    })
    .await;

    let ran =
        backend.run(&id, &["/bin/sh".into(), "-c".into(), "echo in; exit 7".into()], SOON).await.unwrap();
    assert_eq!(ran, ExecOutput::Exited { code: 7, output: b"in\n".to_vec() });
    let options = ExecOptions { stdout: true, ..ExecOptions::default() };
    let started = backend.exec(&id, &["/bin/echo".into(), "streamed".into()], &options).await.unwrap();
    let Started::Session(mut session) = started else { panic!("a session") };
    let mut text = String::new();
    session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!((text.as_str(), session.exit.await.unwrap().code), ("streamed\n", 0));

    let listing = backend.list(&config.labels).await.unwrap();
    assert_eq!((listing.sandboxes.len(), listing.containers.len()), (1, 0), "the container has other labels");
    assert_eq!(backend.list(&main.labels).await.unwrap().containers[0].id, id);

    backend.stop_container(&id, SOON).await.unwrap();
    let over = backend.container(&id).await.unwrap();
    assert_eq!((over.state, over.exit_code, over.reason.as_str()), (ContainerState::Exited, 3, "Error"));
    let told = tokio::time::timeout(SOON, events.next()).await.expect("an event in time");
    assert_eq!(told.as_deref(), Some("uid-life"));

    assert!(backend.used_images().await.unwrap().contains(super::test_backend::IMAGE));
    backend.stop_sandbox(&sandbox).await.unwrap();
    assert_eq!(backend.sandbox(&sandbox).await.unwrap().state, SandboxState::NotReady);
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.remove_sandbox(&sandbox).await.unwrap();
    assert_eq!(*backend.container(&id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(*backend.sandbox(&sandbox).await.unwrap_err().kind(), Kind::NotFound);
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn containers_of_a_pod_share_network_and_shm_but_not_files() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("share");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let script = "echo secret > /own; echo shared > /dev/shm/x; echo answer | nc -l -p 7000 & wait; while :; do sleep 1; done";
    let first = start(&backend, &sandbox, &container("first", script), &config).await;
    let look = "i=0; until [ -e /dev/shm/x ]; do sleep 0.1; done; cat /dev/shm/x; ls /own 2>/dev/null || echo none; \
                until nc 127.0.0.1 7000 < /dev/null; do sleep 0.1; done; cat /proc/1/comm; true";
    let text = script_output(&backend, &sandbox, &config, look).await;
    assert_eq!(text, "shared\nnone\nanswer\nsh\n");
    backend.remove_container(&first).await.unwrap();
    backend.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_sees_neither_other_pods_nor_the_host() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let (one, other) = (test_backend.sandbox("one"), test_backend.sandbox("other"));
    let first = backend.run_sandbox(&one).await.unwrap();
    let second = backend.run_sandbox(&other).await.unwrap();
    let keeper = container("keeper", "echo x > /dev/shm/secret; while :; do sleep 1; done");
    start(&backend, &first, &keeper, &one).await;
    let script = "ls /dev/shm | wc -l; ls -d /proc/[0-9]* | wc -l; ls -d /proc/self/root/root 2>/dev/null; \
                  mount | grep -c vk-local; mknod /tmp/disk b 8 0; cat /tmp/disk 2>&1 | head -c 64; hostname";
    let text = script_output(&backend, &second, &other, script).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "0", "{text}");
    assert!(lines[1].parse::<u32>().unwrap() < 10, "{text}");
    assert!(text.contains("ermission") || text.contains("permitted"), "{text}");
    assert!(text.ends_with("other\n"), "{text}");
    backend.remove_all().await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_pod_can_share_its_pid_namespace_and_nothing_of_it_is_in_the_cgroup_of_the_service() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let mut config = test_backend.sandbox("pids");
    config.security.namespaces.pid = Share::Pod;
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    // A service manager kills everything in our cgroup: no process of the pod may be there.
    let folder = test_backend.root().join("local/sandboxes").join(&sandbox);
    let pause = vk_provider_local::shim::pause_process_pid(&folder).expect("the pause process runs");
    let shims = format!("{}/shims", test_backend.cgroup());
    for line in std::fs::read_to_string(format!("/proc/{pause}/cgroup")).unwrap().lines() {
        // Hierarchies that are not mounted cannot be entered.
        assert!(line.ends_with(&shims) || line.ends_with(":/"), "{line} is not {shims}");
    }
    let mut first = container("first", "exec sleep 4242");
    first.security.namespaces.pid = Share::Pod;
    start(&backend, &sandbox, &first, &config).await;
    let mut second = container("second", "until ps | grep -v grep | grep 'sleep 4242'; do sleep 0.1; done");
    second.security.namespaces.pid = Share::Pod;
    let id = start(&backend, &sandbox, &second, &config).await;
    let over = wait_for_exit(&backend, &id).await;
    assert_eq!(over.exit_code, 0);
    assert!(log(&over).contains("sleep 4242"));
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn the_user_comes_from_the_image_or_the_pod() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("users");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut named = container(
        "named",
        "id -u; id -G; touch /x 2>/dev/null || echo refused; grep NoNewPrivs /proc/self/status",
    );
    named.image = "vk.test/named-user:1".to_owned();
    named.security.supplemental_groups = vec![4000];
    named.security.no_new_privileges = true;
    let id = start(&backend, &sandbox, &named, &config).await;
    let over = wait_for_exit(&backend, &id).await;
    assert_eq!(log(&over), "1000\n1000 2000 4000\nrefused\nNoNewPrivs:\t1\n");
    assert_eq!(over.user.unwrap().supplemental_groups, [1000, 2000, 4000]);
    let mut unknown = container("unknown", "true");
    unknown.security.username = Some("nobody".to_owned());
    let error = backend.create_container(&sandbox, &unknown, &config).await.unwrap_err();
    assert!(
        error.message().ends_with("unable to find user nobody: no matching entries in passwd file"),
        "{error}"
    );
    backend.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_missing_command_has_the_error_of_containerd() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("absent");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut absent = container("absent", "");
    absent.command = vec!["/absent".to_owned()];
    let id = backend.create_container(&sandbox, &absent, &config).await.unwrap();
    let error = backend.start_container(&id).await.unwrap_err();
    assert!(
        error.message().contains("exec: \"/absent\": stat /absent: no such file or directory"),
        "{error}"
    );
    let over = backend.container(&id).await.unwrap();
    assert_eq!(
        (over.state, over.exit_code, over.reason.as_str()),
        (ContainerState::Exited, 128, "StartError")
    );
    backend.remove_sandbox(&sandbox).await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_that_ignores_signals_is_killed_after_the_grace_period() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("stubborn");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let mut stubborn = container("stubborn", "");
    stubborn.command = vec!["/stubborn".to_owned()];
    let id = start(&backend, &sandbox, &stubborn, &config).await;
    backend.stop_container(&id, Duration::from_millis(300)).await.unwrap();
    let over = backend.container(&id).await.unwrap();
    assert_eq!((over.state, over.exit_code), (ContainerState::Exited, 137));
    backend.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn port_forward_connects_to_a_port_in_the_pod() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("port");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    start(&backend, &sandbox, &container("main", "while :; do echo hello | nc -l -p 8080; done"), &config)
        .await;
    let text = vk_testing::eventually("the port answers", SOON, || async {
        let forward = backend.port_forward(&sandbox, 8080).await.map_err(|error| error.report())?;
        let vk_provider::ability::Forward::Stream(mut stream) = forward else { panic!("a stream") };
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map_err(|error| error.to_string())?;
        if text.is_empty() { Err("nothing".to_owned()) } else { Ok(text) }
    })
    .await;
    assert_eq!(text, "hello\n");
    backend.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn the_state_directory_is_only_accessible_to_its_owner() {
    let test_backend = TestBackend::new().await;
    let backend = test_backend.open().await;
    let config = test_backend.sandbox("closed");
    let sandbox = backend.run_sandbox(&config).await.unwrap();
    let local = test_backend.root().join("local");
    for path in [
        local.clone(),
        local.join("sandboxes"),
        local.join("sandboxes").join(&sandbox),
        local.join("containers"),
    ] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", path.display());
    }
    backend.remove_sandbox(&sandbox).await.unwrap();
}
