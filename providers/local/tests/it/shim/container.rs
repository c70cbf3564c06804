//! Level `oci`: containers and their exits.

use std::{fs, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, timeout},
};
use vk_pod_engine::backend::ExecOutput;
use vk_provider::ability::{AttachOptions, TermSize};
use vk_provider_local::shim::State;
use vk_testing::eventually;

use super::bundle::{Bundle, SOON, alive, signal, wait_for_death};

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_container_runs_isolated_to_its_exit() {
    let bundle = Bundle::container("echo $$; ls /; echo $GREETING $HOME; echo bad >&2; exit 42");
    let exit = bundle.run_to_exit().await;
    let lines = bundle.log_lines();
    assert_eq!((exit.code, exit.reason.as_str(), exit.oom), (42, "Error", false), "{}", bundle.shim_errors());
    assert_eq!(lines[0], "1");
    assert!(lines.contains(&"hello /root".to_owned()) && lines.contains(&"bad".to_owned()), "{lines:?}");
    assert!(!lines.contains(&"home".to_owned()), "{lines:?}");
    // Only the recorded exit is left.
    assert!(!bundle.shim.dir().join("runtime").exists());
    let cgroup = bundle.launch.cgroup.as_ref().unwrap().trim_start_matches('/').to_owned();
    for entry in fs::read_dir("/sys/fs/cgroup").unwrap().filter_map(Result::ok) {
        assert!(!entry.path().join(&cgroup).exists(), "{:?}", entry.path());
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_signal_stops_a_container_that_handles_it_and_sigkill_any_other() {
    let polite = Bundle::container("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done");
    polite.start().await.unwrap();
    polite.wait_for_log("up").await;
    polite.shim.signal(nix::libc::SIGTERM).await.unwrap();
    assert_eq!(polite.wait_for_exit().await.code, 3);
    assert_eq!(polite.log_lines(), ["up", "bye"]);

    let stubborn = Bundle::container("trap '' TERM; echo up; while :; do sleep 0.05; done");
    stubborn.start().await.unwrap();
    stubborn.wait_for_log("up").await;
    stubborn.shim.signal(nix::libc::SIGTERM).await.unwrap();
    let state = stubborn.shim.wait(Instant::now() + Duration::from_millis(300)).await.unwrap();
    assert!(matches!(state, State::Running { .. }), "{state:?}");
    stubborn.shim.signal(nix::libc::SIGKILL).await.unwrap();
    let exit = stubborn.wait_for_exit().await;
    assert_eq!((exit.code, exit.reason.as_str()), (137, "Error"));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn commands_that_cannot_run_have_the_errors_of_runc() {
    let prefix = "failed to create container: unable to start container process: ";
    for (command, words) in [
        ("/absent", "exec: \"/absent\": stat /absent: no such file or directory"),
        ("nosuch", "exec: \"nosuch\": executable file not found in $PATH"),
        ("/etc/passwd", "exec: \"/etc/passwd\": permission denied"),
    ] {
        let bundle = Bundle::of(&[command]);
        let error = bundle.start().await.unwrap_err();
        assert_eq!(error.message, format!("{prefix}{words}"));
        assert_eq!((error.code, error.reason.as_str()), (128, "StartError"));
        let State::Exited(exit) = bundle.shim.state().unwrap() else { panic!("{command}") };
        assert_eq!((exit.code, exit.message), (128, error.message));
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn an_invalid_bundle_is_reported_with_the_cause() {
    let bundle = Bundle::container("true").mount("/nonexistent/source".as_ref(), "/v");
    let error = bundle.start().await.unwrap_err();
    assert!(error.message.contains("error during container init"), "{error}");
    assert!(error.message.contains("nonexistent") || error.message.contains("ENOENT"), "{error}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_container_that_exceeds_its_memory_is_oom_killed() {
    let bundle = Bundle::of(&["sh", "-c", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"])
        .limits(Some(16 << 20), None);
    let exit = bundle.run_to_exit().await;
    assert_eq!(
        (exit.code, exit.reason.as_str(), exit.oom),
        (137, "OOMKilled", true),
        "{:?}",
        bundle.log_lines()
    );
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_fork_bomb_is_killed_with_its_container() {
    let bundle =
        Bundle::container("echo up; f() { f | f & }; f; while :; do sleep 1; done").limits(None, Some(40));
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    let run_to_exit = bundle.shim.signal(nix::libc::SIGKILL).await;
    assert!(run_to_exit.is_ok(), "{run_to_exit:?}");
    assert_eq!(bundle.wait_for_exit().await.code, 137);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn daemons_of_a_container_are_killed_with_it() {
    let bundle = Bundle::container("(setsid sleep 1000 &); sleep 0.1; exit 0");
    bundle.start().await.unwrap();
    assert_eq!(bundle.wait_for_exit().await.code, 0);
    let cgroup = bundle.launch.cgroup.clone().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let left = processes.filter(|entry| {
        fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|text| text.contains(&cgroup))
    });
    assert_eq!(left.count(), 0);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn no_signal_is_blocked_in_a_container_or_its_commands() {
    let bundle = Bundle::container("grep -E 'Sig(Blk|Ign)' /proc/self/status; sleep 1000");
    bundle.start().await.unwrap();
    bundle.wait_for_log("SigIgn").await;
    let signals = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"].map(str::to_owned);
    let ExecOutput::Exited { output, .. } = bundle.shim.run(&signals, SOON).await.unwrap() else { panic!() };
    for text in [bundle.log_lines().join("\n"), String::from_utf8(output).unwrap()] {
        for line in text.lines() {
            let bits = u64::from_str_radix(line.split_ascii_whitespace().nth(1).unwrap(), 16).unwrap();
            // The C library reserves some real-time signals.
            assert_eq!(bits & 0x7fff_ffff, 0, "{text}");
        }
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn another_user_can_reopen_its_stdout() {
    let bundle =
        Bundle::container("id -u; echo $HOME; echo again > /dev/stdout; echo bad > /dev/stderr").user(1000);
    let exit = bundle.run_to_exit().await;
    assert_eq!(exit.code, 0, "{:?}", bundle.log_lines());
    let mut lines = bundle.log_lines();
    lines.sort();
    assert_eq!(lines, ["/srv/web", "1000", "again", "bad"]);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn fifty_thousand_lines_per_second_are_logged_completely() {
    let count = 200_000;
    let bundle = Bundle::container(&format!("seq 1 {count}"));
    bundle.start().await.unwrap();
    let before = Instant::now();
    bundle.wait_for_exit().await;
    let took = before.elapsed();
    let lines = bundle.log_lines();
    assert_eq!(lines.len(), count);
    assert!(lines.iter().zip(1..).all(|(line, number)| *line == number.to_string()));
    assert!(took < Duration::from_secs(4), "{count} lines took {took:?}");
    println!("{count} lines in {took:?}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn attached_clients_send_input_and_see_output_and_the_container_keeps_running() {
    let bundle = Bundle::container("while read line; do echo got $line; done; echo over").stdin(false);
    bundle.start().await.unwrap();
    let options = AttachOptions { stdin: true, stdout: true, stderr: true, tty: false };
    for word in ["one", "two"] {
        let mut session = bundle.shim.attach(&options).await.unwrap();
        let mut other = bundle.shim.attach(&AttachOptions { stdin: false, ..options }).await.unwrap();
        let (mut stdin, mut stdout) = (session.stdin.take().unwrap(), session.stdout.take().unwrap());
        stdin.write_all(format!("{word}\n").as_bytes()).await.unwrap();
        for stdout in [&mut stdout, other.stdout.as_mut().unwrap()] {
            let mut bytes = vec![0; format!("got {word}\n").len()];
            timeout(SOON, stdout.read_exact(&mut bytes)).await.unwrap().unwrap();
            assert_eq!(bytes, format!("got {word}\n").as_bytes());
        }
    }
    assert!(alive(bundle.pid()));
    bundle.wait_for_log("got two").await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn with_stdin_once_input_ends_with_the_first_attached_client() {
    let bundle = Bundle::container("while read line; do echo got $line; done; echo over; exit 9").stdin(true);
    bundle.start().await.unwrap();
    let options = AttachOptions { stdin: true, stdout: true, stderr: true, tty: false };
    let mut session = bundle.shim.attach(&options).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    stdin.shutdown().await.unwrap();
    let mut text = String::new();
    let mut stdout = session.stdout.take().unwrap();
    let (exit, read) =
        timeout(SOON, async { tokio::join!(session.exit, stdout.read_to_string(&mut text)) }).await.unwrap();
    read.unwrap();
    assert_eq!((text.as_str(), exit.unwrap().code), ("got one\nover\n", 9));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_client_that_does_not_read_is_disconnected() {
    let bundle = Bundle::container("read go; seq 1 400000; echo all").stdin(false);
    bundle.start().await.unwrap();
    let options = AttachOptions { stdin: true, stdout: true, stderr: false, tty: false };
    let mut lazy = bundle.shim.attach(&options).await.unwrap();
    lazy.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
    bundle.wait_for_log("all").await;
    let end = timeout(SOON, lazy.exit).await.unwrap();
    assert!(end.is_err_and(|error| error.message().contains("fast enough")));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_container_with_a_terminal_sees_its_size() {
    let bundle =
        Bundle::container("trap 'stty size' WINCH; tty; while :; do sleep 0.05; done").tty().stdin(false);
    bundle.start().await.unwrap();
    bundle.wait_for_log("/dev/pts/0").await;
    let options = AttachOptions { stdin: true, stdout: true, stderr: false, tty: true };
    let session = bundle.shim.attach(&options).await.unwrap();
    let sizing = async {
        session.resize.as_ref().unwrap().send(TermSize { width: 120, height: 45 }).await.unwrap();
        bundle.wait_for_log("45 120").await;
    };
    let mut exit = session.exit;
    tokio::select! {
        () = sizing => {}
        end = &mut exit => panic!("{end:?}"),
    }
    drop(exit);
    assert!(alive(bundle.pid()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_pause_process_holds_the_pid_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let program = super::bundle::program();
    let cgroup = format!("/vk-test-pause-{}", std::process::id());
    let start = || vk_provider_local::shim::start_pause_process(&program, folder.path(), &cgroup, &[]);
    let pid = start().await.unwrap();
    assert_eq!(start().await.unwrap(), pid);
    assert_eq!(vk_provider_local::shim::pause_process_pid(folder.path()), Some(pid));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let inside = status.lines().find(|line| line.starts_with("NSpid:")).unwrap();
    assert!(inside.ends_with("\t1"), "{inside}");
    assert!(status.contains("Uid:\t65534") && status.contains("CapEff:\t0000000000000000"), "{status}");

    let mut bundle = Bundle::container("ps; echo $$; sleep 1000");
    let namespaces = bundle.spec.linux().as_ref().unwrap().namespaces().clone().unwrap();
    let shared: Vec<_> = namespaces
        .into_iter()
        .map(|mut namespace| {
            if namespace.typ() == oci_spec::runtime::LinuxNamespaceType::Pid {
                namespace.set_path(Some(format!("/proc/{pid}/ns/pid").into()));
            }
            namespace
        })
        .collect();
    bundle.spec.linux_mut().as_mut().unwrap().set_namespaces(Some(shared));
    bundle.start().await.unwrap();
    bundle.wait_for_log("sleep 1000").await;
    let init = bundle.pid();
    signal(pid, nix::libc::SIGTERM);
    wait_for_death(pid).await;
    wait_for_death(init).await;
    assert_eq!(bundle.wait_for_exit().await.code, 137);
    eventually("its lock is released", SOON, async || {
        vk_provider_local::shim::pause_process_pid(folder.path()).map_or(Ok(()), |pid| Err(pid.to_string()))
    })
    .await;
    vk_provider_local::cgroup::HostCgroups::mounted().unwrap().remove(&cgroup).unwrap();
}
