//! Killed supervisors and helpers leave no processes behind.

use std::{fs, path::Path, time::Duration};

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use vk_provider_local::{
    cgroup::HostCgroups,
    shim::{ContainerExit, State},
};
use vk_testing::eventually;

use super::bundle::{Bundle, SOON, program, signal, wait_for_death};

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_container_whose_supervisor_was_killed_is_lost_and_can_be_cleaned_up() {
    let bundle = Bundle::container("echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    let pid = bundle.pid();
    signal(bundle.supervisor(), nix::libc::SIGKILL);
    eventually("it is lost", SOON, async || match bundle.shim.state().unwrap() {
        State::Lost { pid: Some(found), started: Some(_) } if found == pid => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // Waiting ends, too.
    let state = bundle.shim.wait(Instant::now() + SOON).await.unwrap();
    assert!(matches!(state, State::Lost { .. }), "{state:?}");
    let path = bundle.launch.cgroup.as_ref().unwrap();
    HostCgroups::mounted().unwrap().kill(path).unwrap();
    wait_for_death(pid).await;
    HostCgroups::mounted().unwrap().remove(path).unwrap();
    let now: Timestamp = "2026-11-15T16:30:00Z".parse().unwrap();
    let exit = ContainerExit::ended(now, now, 137, false);
    bundle.shim.save_exit(&exit).unwrap();
    assert_eq!(bundle.shim.state().unwrap(), State::Exited(exit));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_killed_helper_fails_the_start_and_leaves_nothing_behind() {
    // The hook blocks the helper until it is killed.
    let mut bundle = Bundle::container("sleep 1000");
    let hooks: oci_spec::runtime::Hooks = serde_json::from_value(serde_json::json!({
        "createRuntime": [{"path": "/bin/sleep", "args": ["sleep", "1000"]}],
    }))
    .unwrap();
    bundle.spec.set_hooks(Some(hooks));
    let killing = async {
        let helper =
            eventually("the helper is running", SOON, async || bundle.helper("create").ok_or("none")).await;
        // Wait for the process that waits for its start.
        eventually("the container's process exists", SOON, async || {
            let path = bundle.launch.cgroup.as_ref().unwrap().trim_start_matches('/').to_owned();
            let found =
                fs::read_to_string(Path::new("/sys/fs/cgroup/memory").join(path).join("cgroup.procs"));
            match found {
                Ok(text) if !text.is_empty() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        signal(helper, nix::libc::SIGKILL);
    };
    let (started, ()) = tokio::join!(bundle.start(), killing);
    let error = started.unwrap_err();
    assert!(error.message.contains("was killed"), "{error}");
    let State::Exited(exit) = bundle.shim.state().unwrap() else { panic!("{:?}", bundle.shim.state()) };
    assert_eq!((exit.code, exit.reason.as_str()), (128, "StartError"));
    let cgroup = bundle.launch.cgroup.clone().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let left = processes.filter(|entry| {
        fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|text| text.contains(&cgroup))
    });
    assert_eq!(left.count(), 0);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_caller_may_stop_waiting_for_a_start() {
    let bundle = Bundle::container("echo up; sleep 1000");
    tokio::select! {
        biased;
        () = sleep(Duration::from_millis(5)) => {}
        started = bundle.start() => started.unwrap(),
    }
    // The start continues, or never began. Starting again works in both cases.
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    let pid = bundle.pid();
    assert_eq!(bundle.log_lines(), ["up"]);
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
    wait_for_death(pid).await;
    bundle.wait_for_exit().await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_supervisor_uses_little_memory() {
    let bundle = Bundle::container("echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", bundle.supervisor())).unwrap();
    let kib = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    println!("{rollup}");
    // Pages of a freshly linked binary are dirty, too, but not private memory.
    assert!(kib("Anonymous:") < 3 * 1024, "{rollup}");
    let threads = fs::read_dir(format!("/proc/{}/task", bundle.supervisor())).unwrap().count();
    assert_eq!(threads, 1, "{:?}", program());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_supervisor_moves_into_its_own_cgroup() {
    let mut bundle = Bundle::container("echo up; sleep 1000");
    let own = format!("{}-shims/deep", bundle.launch.cgroup.as_ref().unwrap());
    bundle.launch.own_cgroup = Some(own.clone());
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    let of = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for line in of(bundle.supervisor()).lines() {
        // Hierarchies that are not mounted cannot be entered.
        assert!(line.ends_with(&own) || line.ends_with(":/"), "{line}; {}", bundle.shim_errors());
    }
    let (memory, inside) = (of(bundle.supervisor()), of(bundle.pid()));
    assert!(memory.lines().any(|line| line.contains("memory") && line.ends_with(&own)), "{memory}");
    assert!(inside.lines().all(|line| !line.contains("memory") || !line.ends_with(&own)), "{inside}");
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
    bundle.wait_for_exit().await;
    eventually("the supervisor exits", SOON, async || HostCgroups::mounted().unwrap().remove(&own)).await;
}
