//! Level `process`: needs no privileges.

use std::{fs, time::Duration};

use tokio::{io::AsyncReadExt as _, net::UnixDatagram, time::timeout};
use vk_pod_engine::backend::ExecOutput;
use vk_provider::ability::ExecOptions;
use vk_provider_local::{
    procfs::{container_processes, start_ticks},
    shim::State,
};
use vk_testing::eventually;

use super::bundle::{Bundle, SOON, alive, signal, wait_for_death};

#[tokio::test]
async fn a_process_runs_to_its_exit_and_its_output_is_logged() {
    let bundle = Bundle::process("echo $GREETING; echo bad >&2; pwd; exit 7");
    assert_eq!(bundle.shim.state().unwrap(), State::Created);
    let exit = bundle.run_to_exit().await;
    assert_eq!((exit.code, exit.reason.as_str(), exit.oom), (7, "Error", false));
    assert!(exit.started.is_some_and(|started| started <= exit.finished));
    let text = fs::read_to_string(&bundle.launch.log).unwrap();
    for line in ["stdout F hello", "stderr F bad"] {
        assert!(text.contains(line), "{text}");
    }
    let folder = bundle.folder.path().file_name().unwrap().to_str().unwrap();
    assert!(bundle.log_lines().iter().any(|line| line.contains(folder)), "{text}");
}

#[tokio::test]
async fn success_is_completed_and_signals_are_added_to_128() {
    let bundle = Bundle::process("true");
    let exit = bundle.run_to_exit().await;
    assert_eq!((exit.code, exit.reason.as_str()), (0, "Completed"));
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    bundle.shim.signal(nix::libc::SIGTERM).await.unwrap();
    let exit = bundle.wait_for_exit().await;
    assert_eq!((exit.code, exit.reason.as_str()), (143, "Error"));
    // Signalling an exited process is not an error.
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
}

#[tokio::test]
async fn real_time_signals_are_sent_and_reported() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let command = ["sh", "-c", "kill -40 $$; sleep 1000"].map(str::to_owned);
    let run_to_exit = bundle.shim.run(&command, SOON).await.unwrap();
    assert!(matches!(run_to_exit, ExecOutput::Exited { code: 168, .. }), "{run_to_exit:?}");
    for number in [0, -9, 65] {
        assert!(bundle.shim.signal(number).await.is_err(), "{number}");
    }
    bundle.shim.signal(37).await.unwrap();
    let exit = bundle.wait_for_exit().await;
    assert_eq!((exit.code, exit.reason.as_str()), (165, "Error"));
}

#[tokio::test]
async fn a_command_that_hangs_in_its_helper_is_killed_when_the_client_disconnects() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let helper = {
        let _stuck = bundle.stuck();
        let command = ["true".to_owned()];
        let running = bundle.shim.run(&command, Duration::ZERO);
        let found = eventually("the helper hangs", SOON, async || bundle.helper("exec").ok_or("none"));
        tokio::select! {
            run_to_exit = running => panic!("{run_to_exit:?}"),
            helper = found => helper,
        }
    };
    wait_for_death(helper).await;
    let run_to_exit = bundle.shim.run(&["true".to_owned()], SOON).await.unwrap();
    assert!(matches!(run_to_exit, ExecOutput::Exited { code: 0, .. }), "{run_to_exit:?}");
}

#[tokio::test]
async fn a_missing_command_fails_the_start_with_the_error_of_runc() {
    let mut bundle = Bundle::process("");
    bundle.process.args = vec!["/absent".to_owned()];
    let error = bundle.start().await.unwrap_err();
    assert_eq!(
        error.message,
        "failed to create container: unable to start container process: exec: \"/absent\": stat /absent: no such file or \
         directory"
    );
    let State::Exited(exit) = bundle.shim.state().unwrap() else { panic!("{:?}", bundle.shim.state()) };
    assert_eq!((exit.code, exit.reason.as_str(), exit.started), (128, "StartError", None));
    assert_eq!(exit.message, error.message);
}

#[tokio::test]
async fn descendants_in_other_sessions_are_killed_with_the_process() {
    let bundle = Bundle::process("(setsid sleep 1000 & echo $! > parted); sleep 0.2; exit 0");
    assert_eq!(bundle.run_to_exit().await.code, 0);
    let parted = fs::read_to_string(bundle.folder.path().join("parted")).unwrap();
    // `setsid` forks if it is a group leader; in any case the sleeping process must be gone.
    wait_for_death(parted.trim().parse().unwrap()).await;
}

#[tokio::test]
async fn start_and_exit_are_sent_to_the_events_socket() {
    let bundle = Bundle::process("exit 0");
    let socket = UnixDatagram::bind(&bundle.launch.events).unwrap();
    bundle.run_to_exit().await;
    for _ in 0..2 {
        let mut bytes = [0; 64];
        let length = timeout(SOON, socket.recv(&mut bytes)).await.unwrap().unwrap();
        assert_eq!(&bytes[..length], bundle.launch.pod_uid.as_bytes());
    }
}

#[tokio::test]
async fn a_container_keeps_running_without_the_provider_and_is_found_again() {
    let bundle = Bundle::process("i=0; while :; do i=$((i + 1)); echo line $i; sleep 0.01; done");
    bundle.start().await.unwrap();
    let pid = bundle.pid();
    bundle.wait_for_log("line 5").await;
    // A later process only knows the directory.
    let again = vk_provider_local::shim::Shim::at(bundle.shim.dir());
    assert!(matches!(again.state().unwrap(), State::Running { pid: found, .. } if found == pid));
    // A repeated start has no effect.
    bundle.start().await.unwrap();
    assert_eq!(bundle.pid(), pid);
    bundle.wait_for_log("line 20").await;
    let numbers: Vec<String> = bundle.log_lines();
    let expected: Vec<String> = (1..=numbers.len()).map(|number| format!("line {number}")).collect();
    assert_eq!(numbers, expected);
}

#[tokio::test]
async fn a_command_has_the_environment_and_working_directory_of_the_process() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let command = ["sh", "-c", "echo $GREETING; pwd; echo bad >&2; exit 3"].map(str::to_owned);
    let ExecOutput::Exited { code, output } = bundle.shim.run(&command, SOON).await.unwrap() else {
        panic!()
    };
    let folder = fs::canonicalize(bundle.folder.path()).unwrap();
    assert_eq!(
        (code, String::from_utf8(output).unwrap()),
        (3, format!("hello\n{}\nbad\n", folder.display()))
    );
    let missing = bundle.shim.run(&["nosuch".to_owned()], SOON).await.unwrap_err();
    let words = "OCI runtime exec failed: exec failed: unable to start container process: exec: \"nosuch\": executable \
                 file not found in $PATH: unknown";
    assert!(missing.message().ends_with(words), "{missing}");
}

#[tokio::test]
async fn a_command_that_times_out_is_killed_with_its_children() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let command = ["sh", "-c", "echo $$ > asleep; sleep 1000; true"].map(str::to_owned);
    let run_to_exit = bundle.shim.run(&command, Duration::from_millis(500)).await.unwrap();
    assert!(
        matches!(&run_to_exit, ExecOutput::TimedOut { message } if message.starts_with("command timed out")),
        "{run_to_exit:?}"
    );
    let pid = fs::read_to_string(bundle.folder.path().join("asleep")).unwrap();
    wait_for_death(pid.trim().parse().unwrap()).await;
}

#[tokio::test]
async fn a_command_sees_the_size_of_its_terminal() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let command = ["sh", "-c", "trap 'stty size; exit 5' WINCH; tty; while :; do sleep 0.05; done"];
    let options = ExecOptions { stdin: true, stdout: true, tty: true, ..ExecOptions::default() };
    let mut session = bundle.shim.exec(&command.map(str::to_owned), &options).await.unwrap();
    let mut stdout = session.stdout.take().unwrap();
    let (mut text, mut bytes) = (String::new(), [0; 256]);
    let resize = session.resize.clone().unwrap();
    let reading = async {
        loop {
            let length = stdout.read(&mut bytes).await.unwrap();
            if length == 0 {
                return text;
            }
            text.push_str(&String::from_utf8_lossy(&bytes[..length]));
            if text.contains("/dev/pts/") && !text.contains("37 91") {
                let size = vk_provider::ability::TermSize { width: 91, height: 37 };
                let _ = resize.send(size).await;
            }
        }
    };
    let (exit, text) = timeout(SOON, async { tokio::join!(session.exit, reading) }).await.unwrap();
    assert!(text.contains("37 91"), "{text:?}");
    assert_eq!(exit.unwrap().code, 5);
}

#[tokio::test]
async fn a_supervisor_ignores_the_signals_of_a_shutdown() {
    let bundle = Bundle::process("echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    let supervisor = bundle.supervisor();
    for number in [nix::libc::SIGTERM, nix::libc::SIGINT, nix::libc::SIGHUP] {
        signal(supervisor, number);
    }
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
    assert_eq!(bundle.wait_for_exit().await.code, 137);
}

#[tokio::test]
async fn a_full_disk_does_not_stop_the_container() {
    let mut bundle = Bundle::process("i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); echo $i; done; exit 4");
    bundle.launch.log = "/dev/full".into();
    assert_eq!(bundle.run_to_exit().await.code, 4);
}

#[tokio::test]
async fn the_log_continues_in_a_new_file() {
    let bundle = Bundle::process("i=0; while :; do i=$((i + 1)); echo line $i; sleep 0.005; done");
    bundle.start().await.unwrap();
    bundle.wait_for_log("line 10").await;
    let old = bundle.launch.log.with_extension("old");
    fs::rename(&bundle.launch.log, &old).unwrap();
    bundle.shim.reopen_log().await.unwrap();
    eventually("a line in the new file", SOON, async || {
        if bundle.log_lines().is_empty() { Err("none") } else { Ok(()) }
    })
    .await;
    let before = fs::read_to_string(&old).unwrap();
    let last: usize = before.lines().last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(bundle.log_lines()[0], format!("line {}", last + 1));
}

#[tokio::test]
async fn all_processes_of_a_lost_container_are_found() {
    let script = "(setsid sleep 1000 & echo $! > parted); echo up; sleep 1000";
    let bundle = Bundle::process(script);
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    let (pid, ticks) = (bundle.pid(), bundle.shim.start_ticks().unwrap());
    assert!(ticks.is_some() && ticks == start_ticks(pid), "{ticks:?}");
    signal(bundle.supervisor(), nix::libc::SIGKILL);
    eventually("it is lost", SOON, async || match bundle.shim.state().unwrap() {
        State::Lost { pid: Some(found), .. } if found == pid => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(bundle.shim.start_ticks().unwrap(), ticks);
    let id = bundle.shim.dir().file_name().unwrap().to_str().unwrap();
    let found = container_processes(id);
    assert!(found.contains(&pid) && found.len() >= 2, "{found:?}");
    for stray in found {
        signal(stray, nix::libc::SIGKILL);
    }
    eventually("no process is left", SOON, async || {
        let left = container_processes(id);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_program_whose_supervisor_was_killed_immediately_is_found() {
    // The first action of the program, when its supervisor has hardly noticed its start.
    let bundle = Bundle::process("kill -9 $PPID; sleep 1000");
    let _ = bundle.start().await;
    let pid = eventually("it is lost", SOON, async || match bundle.shim.state().unwrap() {
        State::Lost { pid: Some(pid), .. } => Ok(pid),
        other => Err(format!("{other:?}")),
    })
    .await;
    let ticks = bundle.shim.start_ticks().unwrap();
    assert!(alive(pid) && ticks.is_some() && ticks == start_ticks(pid), "{pid} {ticks:?}");
    let id = bundle.shim.dir().file_name().unwrap().to_str().unwrap();
    for stray in container_processes(id) {
        signal(stray, nix::libc::SIGKILL);
    }
}

#[tokio::test]
async fn a_program_sets_no_new_privs_if_requested() {
    for wanted in [false, true] {
        let mut bundle = Bundle::process("grep NoNewPrivs /proc/self/status");
        bundle.launch.no_new_privs = wanted;
        assert_eq!(bundle.run_to_exit().await.code, 0);
        assert_eq!(bundle.log_lines(), [format!("NoNewPrivs:\t{}", u8::from(wanted))]);
    }
}
