//! Level `process`: needs no rights.

use std::{fs, time::Duration};

use tokio::{io::AsyncReadExt as _, net::UnixDatagram, time::timeout};
use vk_pod_engine::backend::ExecOutput;
use vk_provider::ability::ExecOptions;
use vk_provider_local::shim::{State, plain_strays, start_ticks_of};
use vk_testing::eventually;

use super::bundle::{Bundle, SOON, alive, dies, signal};

#[tokio::test]
async fn a_process_runs_to_its_end_and_its_output_is_logged() {
    let bundle = Bundle::process("echo $GREETING; echo bad >&2; pwd; exit 7");
    assert_eq!(bundle.shim.state().unwrap(), State::Created);
    let exit = bundle.ran().await;
    assert_eq!((exit.code, exit.reason.as_str(), exit.oom), (7, "Error", false));
    assert!(exit.started.is_some_and(|started| started <= exit.finished));
    let text = fs::read_to_string(&bundle.launch.log).unwrap();
    for line in ["stdout F hello", "stderr F bad"] {
        assert!(text.contains(line), "{text}");
    }
    let folder = bundle.folder.path().file_name().unwrap().to_str().unwrap();
    assert!(bundle.logged().iter().any(|line| line.contains(folder)), "{text}");
}

#[tokio::test]
async fn success_is_completed_and_a_signal_is_counted_from_128() {
    let bundle = Bundle::process("true");
    let exit = bundle.ran().await;
    assert_eq!((exit.code, exit.reason.as_str()), (0, "Completed"));
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    bundle.shim.signal(nix::libc::SIGTERM).await.unwrap();
    let exit = bundle.ended().await;
    assert_eq!((exit.code, exit.reason.as_str()), (143, "Error"));
    // Nobody is there any more, and that is what was wanted.
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
}

#[tokio::test]
async fn a_signal_without_a_name_is_sent_and_its_end_is_seen() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let command = ["sh", "-c", "kill -40 $$; sleep 1000"].map(str::to_owned);
    let ran = bundle.shim.run(&command, SOON).await.unwrap();
    assert!(matches!(ran, ExecOutput::Exited { code: 168, .. }), "{ran:?}");
    for number in [0, -9, 65] {
        assert!(bundle.shim.signal(number).await.is_err(), "{number}");
    }
    bundle.shim.signal(37).await.unwrap();
    let exit = bundle.ended().await;
    assert_eq!((exit.code, exit.reason.as_str()), (165, "Error"));
}

#[tokio::test]
async fn a_command_that_hangs_before_its_program_ends_with_whoever_asked_for_it() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let helper = {
        let _stuck = bundle.stuck();
        let command = ["true".to_owned()];
        let running = bundle.shim.run(&command, Duration::ZERO);
        let found = eventually("the helper hangs", SOON, async || bundle.helper("exec").ok_or("none"));
        tokio::select! {
            ran = running => panic!("{ran:?}"),
            helper = found => helper,
        }
    };
    dies(helper).await;
    let ran = bundle.shim.run(&["true".to_owned()], SOON).await.unwrap();
    assert!(matches!(ran, ExecOutput::Exited { code: 0, .. }), "{ran:?}");
}

#[tokio::test]
async fn a_command_that_is_not_there_fails_the_start_in_known_words() {
    let mut bundle = Bundle::process("");
    bundle.launch.process.as_mut().unwrap().argv = vec!["/absent".to_owned()];
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
async fn descendants_that_parted_from_the_process_end_with_it() {
    let bundle = Bundle::process("(setsid sleep 1000 & echo $! > parted); sleep 0.2; exit 0");
    assert_eq!(bundle.ran().await.code, 0);
    let parted = fs::read_to_string(bundle.folder.path().join("parted")).unwrap();
    // `setsid` forks where it leads a group: whoever sleeps a thousand seconds for us is gone.
    dies(parted.trim().parse().unwrap()).await;
}

#[tokio::test]
async fn the_events_socket_hears_the_start_and_the_end() {
    let bundle = Bundle::process("exit 0");
    let socket = UnixDatagram::bind(&bundle.launch.events).unwrap();
    bundle.ran().await;
    for _ in 0..2 {
        let mut bytes = [0; 64];
        let length = timeout(SOON, socket.recv(&mut bytes)).await.unwrap().unwrap();
        assert_eq!(&bytes[..length], bundle.launch.pod_uid.as_bytes());
    }
}

#[tokio::test]
async fn a_container_goes_on_without_us_and_is_found_again() {
    let bundle = Bundle::process("i=0; while :; do i=$((i + 1)); echo line $i; sleep 0.01; done");
    bundle.start().await.unwrap();
    let pid = bundle.pid();
    bundle.logs("line 5").await;
    // Whoever comes later knows the directory only.
    let again = vk_provider_local::shim::Shim::at(bundle.shim.dir());
    assert!(matches!(again.state().unwrap(), State::Running { pid: found, .. } if found == pid));
    // A start that was asked for twice is one.
    bundle.start().await.unwrap();
    assert_eq!(bundle.pid(), pid);
    bundle.logs("line 20").await;
    let numbers: Vec<String> = bundle.logged();
    let expected: Vec<String> = (1..=numbers.len()).map(|number| format!("line {number}")).collect();
    assert_eq!(numbers, expected);
}

#[tokio::test]
async fn a_command_has_the_environment_and_the_working_directory_of_the_process() {
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
async fn a_command_whose_time_is_over_is_killed_with_its_children() {
    let bundle = Bundle::process("sleep 1000");
    bundle.start().await.unwrap();
    let command = ["sh", "-c", "echo $$ > asleep; sleep 1000; true"].map(str::to_owned);
    let ran = bundle.shim.run(&command, Duration::from_millis(500)).await.unwrap();
    assert!(
        matches!(&ran, ExecOutput::TimedOut { message } if message.starts_with("command timed out")),
        "{ran:?}"
    );
    let pid = fs::read_to_string(bundle.folder.path().join("asleep")).unwrap();
    dies(pid.trim().parse().unwrap()).await;
}

#[tokio::test]
async fn a_terminal_of_a_command_has_the_size_that_it_is_given() {
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
async fn a_supervisor_does_not_end_because_the_machine_tells_everybody_to() {
    let bundle = Bundle::process("echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    let supervisor = bundle.supervisor();
    for number in [nix::libc::SIGTERM, nix::libc::SIGINT, nix::libc::SIGHUP] {
        signal(supervisor, number);
    }
    bundle.shim.signal(nix::libc::SIGKILL).await.unwrap();
    assert_eq!(bundle.ended().await.code, 137);
}

#[tokio::test]
async fn a_full_disk_does_not_stop_the_container() {
    let mut bundle = Bundle::process("i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); echo $i; done; exit 4");
    bundle.launch.log = "/dev/full".into();
    assert_eq!(bundle.ran().await.code, 4);
}

#[tokio::test]
async fn the_log_goes_on_in_a_new_file() {
    let bundle = Bundle::process("i=0; while :; do i=$((i + 1)); echo line $i; sleep 0.005; done");
    bundle.start().await.unwrap();
    bundle.logs("line 10").await;
    let old = bundle.launch.log.with_extension("old");
    fs::rename(&bundle.launch.log, &old).unwrap();
    bundle.shim.reopen_log().await.unwrap();
    eventually(
        "a line in the new file",
        SOON,
        async || {
            if bundle.logged().is_empty() { Err("none") } else { Ok(()) }
        },
    )
    .await;
    let before = fs::read_to_string(&old).unwrap();
    let last: usize = before.lines().last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(bundle.logged()[0], format!("line {}", last + 1));
}

#[tokio::test]
async fn the_processes_of_a_lost_container_are_found_wherever_they_went() {
    let script = "(setsid sleep 1000 & echo $! > parted); echo up; sleep 1000";
    let bundle = Bundle::process(script);
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    let (pid, ticks) = (bundle.pid(), bundle.shim.start_ticks().unwrap());
    assert!(ticks.is_some() && ticks == start_ticks_of(pid), "{ticks:?}");
    signal(bundle.supervisor(), nix::libc::SIGKILL);
    eventually("it is lost", SOON, async || match bundle.shim.state().unwrap() {
        State::Lost { pid: Some(found), .. } if found == pid => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(bundle.shim.start_ticks().unwrap(), ticks);
    let id = bundle.shim.dir().file_name().unwrap().to_str().unwrap();
    let found = plain_strays(id);
    assert!(found.contains(&pid) && found.len() >= 2, "{found:?}");
    for stray in found {
        signal(stray, nix::libc::SIGKILL);
    }
    eventually("nobody is left", SOON, async || {
        let left = plain_strays(id);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_program_whose_supervisor_was_killed_at_once_is_found() {
    // The first thing that the program does, when its supervisor has hardly noticed that it runs.
    let bundle = Bundle::process("kill -9 $PPID; sleep 1000");
    let _ = bundle.start().await;
    let pid = eventually("it is lost", SOON, async || match bundle.shim.state().unwrap() {
        State::Lost { pid: Some(pid), .. } => Ok(pid),
        other => Err(format!("{other:?}")),
    })
    .await;
    let ticks = bundle.shim.start_ticks().unwrap();
    assert!(alive(pid) && ticks.is_some() && ticks == start_ticks_of(pid), "{pid} {ticks:?}");
    let id = bundle.shim.dir().file_name().unwrap().to_str().unwrap();
    for stray in plain_strays(id) {
        signal(stray, nix::libc::SIGKILL);
    }
}

#[tokio::test]
async fn a_program_renounces_new_privileges_where_that_is_asked_for() {
    for wanted in [false, true] {
        let mut bundle = Bundle::process("grep NoNewPrivs /proc/self/status");
        bundle.launch.no_new_privs = wanted;
        assert_eq!(bundle.ran().await.code, 0);
        assert_eq!(bundle.logged(), [format!("NoNewPrivs:\t{}", u8::from(wanted))]);
    }
}
