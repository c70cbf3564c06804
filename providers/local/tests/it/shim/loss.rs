//! What is killed in the middle leaves nobody without an owner.

use std::{fs, path::Path, time::Duration};

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use vk_provider_local::shim::{Exit, State, cgroup};
use vk_testing::eventually;

use super::bundle::{Bundle, SOON, dies, program, signal};

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_container_whose_supervisor_was_killed_is_lost_and_can_be_cleared() {
    let bundle = Bundle::container("echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    let pid = bundle.pid();
    signal(bundle.supervisor(), nix::libc::SIGKILL);
    eventually("it is lost", SOON, async || match bundle.shim.state().unwrap() {
        State::Lost { pid: Some(found), started: Some(_) } if found == pid => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // Whoever waits, waits no longer.
    let state = bundle.shim.wait(Instant::now() + SOON).await.unwrap();
    assert!(matches!(state, State::Lost { .. }), "{state:?}");
    let path = bundle.launch.cgroup.as_ref().unwrap();
    cgroup::kill(path).unwrap();
    dies(pid).await;
    cgroup::remove(path).unwrap();
    let now: Timestamp = "2026-11-15T16:30:00Z".parse().unwrap();
    let exit = Exit::ended(now, now, 137, false);
    bundle.shim.conclude(&exit).unwrap();
    assert_eq!(bundle.shim.state().unwrap(), State::Exited(exit));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_helper_that_was_killed_fails_the_start_and_leaves_nothing() {
    // The hook holds the helper until it is killed.
    let mut bundle = Bundle::container("sleep 1000");
    let hooks: oci_spec::runtime::Hooks = serde_json::from_value(serde_json::json!({
        "createRuntime": [{"path": "/bin/sleep", "args": ["sleep", "1000"]}],
    }))
    .unwrap();
    bundle.spec.set_hooks(Some(hooks));
    let killing = async {
        let helper =
            eventually("the helper is at work", SOON, async || bundle.helper("create").ok_or("none")).await;
        // Until it has made the process that waits for its start.
        eventually("the container's process is there", SOON, async || {
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
async fn whoever_asked_for_a_start_may_be_gone_before_the_answer() {
    let bundle = Bundle::container("echo up; sleep 1000");
    tokio::select! {
        biased;
        () = sleep(Duration::from_millis(5)) => {}
        started = bundle.start() => started.unwrap(),
    }
    // The start goes on, or never began. Asking again is right in both cases.
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    let pid = bundle.pid();
    assert_eq!(bundle.logged(), ["up"]);
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
    dies(pid).await;
    bundle.ended().await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_supervisor_is_small() {
    let bundle = Bundle::container("echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", bundle.supervisor())).unwrap();
    let kib = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    println!("{rollup}");
    // Pages of a binary that was linked a moment ago are dirty too, and nobody's own.
    assert!(kib("Anonymous:") < 3 * 1024, "{rollup}");
    let threads = fs::read_dir(format!("/proc/{}/task", bundle.supervisor())).unwrap().count();
    assert_eq!(threads, 1, "{:?}", program());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_supervisor_has_a_cgroup_of_its_own_where_one_is_named() {
    let mut bundle = Bundle::container("echo up; sleep 1000");
    let own = format!("{}-shims/deep", bundle.launch.cgroup.as_ref().unwrap());
    bundle.launch.own_cgroup = Some(own.clone());
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    let of = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for line in of(bundle.supervisor()).lines() {
        // A hierarchy that is mounted nowhere cannot be entered.
        assert!(line.ends_with(&own) || line.ends_with(":/"), "{line}; {}", bundle.complaints());
    }
    let (memory, inside) = (of(bundle.supervisor()), of(bundle.pid()));
    assert!(memory.lines().any(|line| line.contains("memory") && line.ends_with(&own)), "{memory}");
    assert!(inside.lines().all(|line| !line.contains("memory") || !line.ends_with(&own)), "{inside}");
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
    bundle.ended().await;
    eventually("the supervisor ends", SOON, async || cgroup::remove(&own)).await;
}
