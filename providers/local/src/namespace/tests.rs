use libcontainer::{oci_spec::runtime::LinuxSeccomp, seccomp::initialize_seccomp};
use serde_json::json;

use super::*;

/// Forbids this thread to start threads or processes, as on a host without room for more.
fn forbid_threads() {
    let filter = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{
            "names": ["clone", "clone3", "fork", "vfork"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": Errno::AGAIN.raw_os_error(),
        }],
    });
    let filter: LinuxSeccomp = serde_json::from_value(filter).unwrap();
    initialize_seccomp(&filter).unwrap();
}

/// Runs a closure on a thread that cannot start threads after the runtime's first one.
fn without_threads<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                // The runtime's blocking thread stays idle for a while and takes the next job.
                tokio::task::spawn_blocking(|| ()).await.unwrap();
                forbid_threads();
                work().await
            })
        });
        worker.join().unwrap()
    })
}

#[test]
fn namespace_files_left_by_a_reboot_are_removed_even_if_no_thread_can_be_started() {
    let dir = tempfile::tempdir().unwrap();
    for kind in Kind::ALL {
        fs::write(kind.path(dir.path()), "").unwrap();
    }
    without_threads(async || unpin(dir.path()).await).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_thread_that_cannot_be_started_is_reported_with_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    let error = without_threads(async || pin(dir.path(), &PodNamespaces::default()).await).unwrap_err();
    assert!(error.to_string().contains(&format!("start a thread for {path}")), "{error}");
    let netns = File::open("/proc/self/ns/net").unwrap();
    let error = without_threads(async || run_inside_blocking(&netns, || ())).unwrap_err();
    assert!(error.to_string().contains("start a thread for a network namespace"), "{error}");
}

#[test]
fn a_file_that_cannot_be_removed_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = Kind::Ipc.path(dir.path());
    fs::create_dir(&path).unwrap();
    let error = remove(dir.path()).unwrap_err();
    assert!(error.to_string().contains(&format!("remove {}", path.display())), "{error}");
}
