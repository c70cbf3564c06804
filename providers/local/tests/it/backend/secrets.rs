//! Resolved Secrets: environment and command line of a container are in no file.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use vk_pod_engine::{
    ContainerBackend,
    backend::{ContainerConfig, ExecOutput},
};
use vk_provider_local::isolation::Isolation;

use super::test_backend::{SOON, TestBackend, container, start};

const SECRET: &str = "correct-horse-battery-staple";

/// The files on the disk of `root` that contain the secret. Memory-backed mounts below it are not on disk.
fn files_with_secret(root: &Path) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    let disk = fs::metadata(root).expect("inspect the directory").dev();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("list a directory").flatten() {
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
            if metadata.is_dir() && metadata.dev() == disk {
                folders.push(entry.path());
            } else if metadata.is_file() {
                let text = fs::read(entry.path()).unwrap_or_default();
                if text.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
                    found
                        .push(entry.path().strip_prefix(root).expect("below the root").display().to_string());
                }
            }
        }
    }
    found.sort();
    found
}

/// A container with a Secret in its environment and, expanded, in its arguments. It prints both.
fn with_secret() -> ContainerConfig {
    let mut config = container("main", "echo $TOKEN $0 | tr a-z A-Z; while :; do sleep 1; done");
    config.env.push(("TOKEN".to_owned(), SECRET.to_owned()));
    config.args = vec![SECRET.to_owned()];
    config
}

async fn secrets_stay_in_memory(test_backend: &TestBackend, config: &ContainerConfig) {
    let sandbox_config = test_backend.sandbox("secrets");
    let (sandbox, id) = {
        let backend = test_backend.open().await;
        let sandbox = backend.run_sandbox(&sandbox_config).await.expect("run the sandbox");
        let id = backend.create_container(&sandbox, config, &sandbox_config).await.expect("create");
        assert_eq!(files_with_secret(&test_backend.root()), Vec::<String>::new(), "created");
        backend.start_container(&id).await.expect("start");
        let log = backend.container(&id).await.expect("inspect").log_path;
        let wanted = format!("{} {}", SECRET.to_uppercase(), SECRET.to_uppercase());
        vk_testing::eventually("the container has its secret", SOON, || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let wanted = &wanted;
            async move { if text.contains(wanted) { Ok(()) } else { Err(text) } }
        })
        .await;
        (sandbox, id)
    };
    assert_eq!(files_with_secret(&test_backend.root()), Vec::<String>::new(), "running");
    // The next process has no copy; the shim does.
    let backend = test_backend.open().await;
    let command = ["sh", "-c", "echo $TOKEN"].map(str::to_owned);
    let ran = backend.run(&id, &command, SOON).await.expect("run a command");
    assert_eq!(ran, ExecOutput::Exited { code: 0, output: format!("{SECRET}\n").into_bytes() });
    assert_eq!(files_with_secret(&test_backend.root()), Vec::<String>::new(), "after a restart");
    backend.remove_sandbox(&sandbox).await.expect("remove the sandbox");
    backend.close().await.expect("close");
    assert_eq!(test_backend.leftovers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn secrets_of_a_container_are_in_no_file_and_its_commands_have_them_after_a_restart() {
    secrets_stay_in_memory(&TestBackend::new().await, &with_secret()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn secrets_of_a_process_are_in_no_file_and_its_commands_have_them_after_a_restart() {
    secrets_stay_in_memory(&TestBackend::bare(Isolation::Process), &with_secret()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs busybox-static: make test"]
async fn a_container_that_an_earlier_process_created_is_not_started_without_its_environment() {
    let test_backend = TestBackend::bare(Isolation::Process);
    let config = test_backend.sandbox("created");
    let (sandbox, id) = {
        let backend = test_backend.open().await;
        let sandbox = backend.run_sandbox(&config).await.expect("run the sandbox");
        let id = backend.create_container(&sandbox, &with_secret(), &config).await.expect("create");
        (sandbox, id)
    };
    let backend = test_backend.open().await;
    let error = backend.start_container(&id).await.expect_err("its environment is gone");
    assert!(error.message().contains("create it again"), "{error}");
    let again = start(&backend, &sandbox, &with_secret(), &config).await;
    assert_ne!(again, id);
    backend.remove_sandbox(&sandbox).await.expect("remove the sandbox");
}
