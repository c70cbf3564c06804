//! Level `oci`: commands in containers.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, timeout},
};
use vk_pod_engine::backend::ExecOutput;
use vk_provider::ability::{ExecOptions, Session};
use vk_testing::eventually;

use super::bundle::{Bundle, SOON, alive};

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|&word| word.to_owned()).collect()
}

async fn ran(bundle: &Bundle, command: &[&str]) -> (i32, String) {
    match bundle.shim.run(&words(command), SOON).await.unwrap() {
        ExecOutput::Exited { code, output } => (code, String::from_utf8_lossy(&output).into_owned()),
        ExecOutput::TimedOut { message } => panic!("{message}; {}", bundle.complaints()),
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_runs_among_the_processes_of_the_container_and_its_code_is_told() {
    let bundle = Bundle::container("sleep 1000").user(1000);
    bundle.start().await.unwrap();
    let (code, output) =
        ran(&bundle, &["sh", "-c", "id -u; echo $GREETING $HOME; pwd; readlink /proc/1/exe; exit 6"]).await;
    assert_eq!((code, output.as_str()), (6, "1000\nhello /srv/web\n/\n/bin/busybox\n"));
    let (code, output) = ran(&bundle, &["sh", "-c", "cat /proc/self/cgroup"]).await;
    let cgroup = bundle.launch.cgroup.as_ref().unwrap();
    assert!(code == 0 && output.contains(cgroup.as_str()), "{output}");
    let (code, _) = ran(&bundle, &["sh", "-c", "kill -9 $$"]).await;
    assert_eq!(code, 137);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_has_the_rights_of_the_container_and_no_more() {
    let mut bundle = Bundle::container("grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; sleep 1000");
    bundle.spec.linux_mut().as_mut().unwrap().set_seccomp(Some(no_folders()));
    bundle.start().await.unwrap();
    bundle.logs("Seccomp:").await;
    let (code, output) = ran(&bundle, &["grep", "-E", "Cap|NoNewPrivs|Seccomp:", "/proc/self/status"]).await;
    assert_eq!((code, output.lines().collect::<Vec<_>>().join(";")), (0, bundle.logged().join(";")));
    assert!(output.contains("Seccomp:\t2"), "{output}");
    let (code, output) = ran(&bundle, &["mkdir", "/tmp/forbidden"]).await;
    assert!(code == 1 && output.contains("not permitted"), "{output}");
}

/// A filter under which nobody makes a directory.
fn no_folders() -> oci_spec::runtime::LinuxSeccomp {
    serde_json::from_value(serde_json::json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
    }))
    .unwrap()
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_of_another_user_is_under_the_filter_with_and_without_new_privileges() {
    for renounced in [None, Some(true)] {
        let script = "grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; sleep 1000";
        let mut bundle = Bundle::container(script).user(1000);
        bundle.spec.linux_mut().as_mut().unwrap().set_seccomp(Some(no_folders()));
        bundle.spec.process_mut().as_mut().unwrap().set_no_new_privileges(renounced);
        bundle.start().await.unwrap();
        bundle.logs("Seccomp:").await;
        let status = ["grep", "-E", "Cap|NoNewPrivs|Seccomp:", "/proc/self/status"];
        let (code, output) = ran(&bundle, &status).await;
        assert_eq!((code, output.lines().collect::<Vec<_>>().join(";")), (0, bundle.logged().join(";")));
        assert!(output.contains("Seccomp:\t2"), "{output}");
        let (code, output) = ran(&bundle, &["mkdir", "/tmp/forbidden"]).await;
        assert!(code == 1 && output.contains("not permitted"), "{output}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_starts_in_a_directory_that_its_user_could_not_enter() {
    let mut bundle = Bundle::container("sleep 1000").user(1000);
    let inner = bundle.shim.dir().join("rootfs/closed/inner");
    std::fs::create_dir_all(&inner).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(inner.parent().unwrap(), closed).unwrap();
    bundle.spec.process_mut().as_mut().unwrap().set_cwd("/closed/inner".into());
    bundle.start().await.unwrap();
    let (code, output) = ran(&bundle, &["readlink", "/proc/self/cwd"]).await;
    assert_eq!((code, output.as_str()), (0, "/closed/inner\n"));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_that_starts_shows_nothing_of_the_machine_to_the_container() {
    // Whoever may trace sees through `/proc` what the others have.
    let script =
        "echo up; while :; do for p in /proc/[0-9]*; do [ -e $p/root$MARK ] && echo seen $p; done; done";
    let mut bundle = Bundle::container(script);
    let mark = bundle.folder.path().join("mark");
    std::fs::write(&mark, "").unwrap();
    let process = bundle.spec.process_mut().as_mut().unwrap();
    process.set_env(Some(vec!["PATH=/bin".to_owned(), format!("MARK={}", mark.display())]));
    let rights: oci_spec::runtime::LinuxCapabilities = serde_json::from_value(serde_json::json!({
        "bounding": ["CAP_SYS_PTRACE"], "effective": ["CAP_SYS_PTRACE"], "permitted": ["CAP_SYS_PTRACE"],
    }))
    .unwrap();
    process.set_capabilities(Some(rights));
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    for _ in 0..60 {
        assert_eq!(ran(&bundle, &["true"]).await.0, 0);
    }
    assert_eq!(bundle.logged(), ["up"]);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_list_of_users_that_gives_nothing_does_not_hold_a_command_up() {
    let bundle = Bundle::container("rm /etc/passwd; mkfifo /etc/passwd; echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.logs("up").await;
    assert_eq!(ran(&bundle, &["sh", "-c", "echo $HOME"]).await, (0, "/\n".to_owned()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_keys_of_a_container_are_its_own() {
    let script = "grep -o '^.*keyring *_ses' /proc/keys | cut -d' ' -f1; echo up; sleep 1000";
    let [one, other] = [(); 2].map(|()| {
        // Another user sees only the keys that it has.
        let mut bundle = Bundle::container(script).user(1000);
        bundle.spec.linux_mut().as_mut().unwrap().set_masked_paths(None);
        bundle
    });
    for bundle in [&one, &other] {
        bundle.start().await.unwrap();
        bundle.logs("up").await;
    }
    assert_eq!((one.logged().len(), other.logged().len()), (2, 2), "{:?}", one.logged());
    assert_ne!(one.logged()[0], other.logged()[0]);
    let command = script.split(';').next().unwrap();
    assert_eq!(ran(&one, &["sh", "-c", command]).await, (0, format!("{}\n", one.logged()[0])));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_binary_of_a_process_that_enters_a_container_cannot_be_written() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    let _stuck = bundle.stuck();
    let command = words(&["true"]);
    let mut running = std::pin::pin!(bundle.shim.run(&command, Duration::ZERO));
    let found = eventually("the helper hangs", SOON, async || bundle.helper("exec").ok_or("none"));
    let helper = tokio::select! {
        ran = &mut running => panic!("{ran:?}"),
        helper = found => helper,
    };
    // While it runs nobody can write to it in any case; this is for one who keeps it until then.
    let mount = rustix::fs::statvfs(format!("/proc/{helper}/exe")).unwrap();
    assert!(mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_that_is_not_there_is_refused_in_the_words_of_runc() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    for (command, reason) in [
        ("nosuch", "exec: \"nosuch\": executable file not found in $PATH: unknown"),
        ("/absent", "exec: \"/absent\": stat /absent: no such file or directory: unknown"),
    ] {
        let error = bundle.shim.run(&words(&[command]), SOON).await.unwrap_err();
        let prefix = "OCI runtime exec failed: exec failed: unable to start container process: ";
        assert!(
            error.message().starts_with("failed to exec in container: failed to start exec \""),
            "{error}"
        );
        assert!(error.message().ends_with(&format!("{prefix}{reason}")), "{error}");
    }
    assert_eq!(ran(&bundle, &["true"]).await.0, 0);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn input_goes_to_a_command_until_its_end_however_much_it_is() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    let options = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };
    let Session { stdin, stdout, exit, .. } =
        bundle.shim.exec(&words(&["sh", "-c", "wc -c; exit 4"]), &options).await.unwrap();
    let (mut stdin, mut stdout) = (stdin.unwrap(), stdout.unwrap());
    let giving = async {
        let block = vec![b'x'; 1 << 20];
        for _ in 0..16 {
            stdin.write_all(&block).await.unwrap();
        }
        stdin.shutdown().await.unwrap();
    };
    let mut text = String::new();
    let ((), read, exit) =
        timeout(SOON, async { tokio::join!(giving, stdout.read_to_string(&mut text), exit) }).await.unwrap();
    read.unwrap();
    assert_eq!((text.trim(), exit.unwrap().code), ("16777216", 4));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn much_output_of_a_command_comes_whole_and_waits_for_its_reader() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    let options = ExecOptions { stdout: true, ..ExecOptions::default() };
    let script = words(&["sh", "-c", "head -c 67108864 /dev/zero"]);
    let Session { stdout, exit, .. } = bundle.shim.exec(&script, &options).await.unwrap();
    let mut stdout = stdout.unwrap();
    let before = Instant::now();
    let reading = async {
        let (mut total, mut bytes) = (0, vec![0; 1 << 16]);
        loop {
            match stdout.read(&mut bytes).await.unwrap() {
                0 => return total,
                length => total += length,
            }
        }
    };
    let (total, exit) = timeout(SOON, async { tokio::join!(reading, exit) }).await.unwrap();
    assert_eq!((total, exit.unwrap().code), (64 << 20, 0));
    println!("64 MiB in {:?}", before.elapsed());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_with_a_terminal_has_one_of_the_container() {
    let bundle = Bundle::container("sleep 1000").user(1000);
    bundle.start().await.unwrap();
    let options = ExecOptions { stdin: true, stdout: true, stderr: false, tty: true };
    let script = words(&["sh", "-c", "tty; echo anew > /dev/tty; read x; echo got $x; exit 8"]);
    let Session { stdin, stdout, exit, .. } = bundle.shim.exec(&script, &options).await.unwrap();
    let (mut stdin, mut stdout) = (stdin.unwrap(), stdout.unwrap());
    stdin.write_all(b"word\n").await.unwrap();
    let mut text = String::new();
    let (read, exit) =
        timeout(SOON, async { tokio::join!(stdout.read_to_string(&mut text), exit) }).await.unwrap();
    read.unwrap();
    assert!(text.contains("/dev/pts/") && text.contains("anew") && text.contains("got word"), "{text:?}");
    assert_eq!(exit.unwrap().code, 8);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_dropped_session_kills_its_command_and_leaves_the_container() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    for tty in [false, true] {
        let options = ExecOptions { stdin: true, stdout: true, stderr: !tty, tty };
        let script = words(&["sh", "-c", "trap '' HUP TERM; touch /tmp/there; (sleep 2000 &); sleep 2000"]);
        let session = bundle.shim.exec(&script, &options).await.unwrap();
        eventually("it runs", SOON, async || {
            let (code, output) = ran(&bundle, &["test", "-e", "/tmp/there"]).await;
            if code == 0 { Ok(()) } else { Err(output) }
        })
        .await;
        drop(session);
        eventually("nobody sleeps on", SOON, async || {
            let (_, output) = ran(&bundle, &["ps"]).await;
            if output.contains("sleep 2000") { Err(output) } else { Ok(()) }
        })
        .await;
        ran(&bundle, &["rm", "/tmp/there"]).await;
    }
    assert!(alive(bundle.pid()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn many_commands_at_a_time_do_not_mix() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    let before = Instant::now();
    let running = (0..20).map(|number| {
        let bundle = &bundle;
        async move {
            let script = format!("echo {number}; exit {number}");
            assert_eq!(ran(bundle, &["sh", "-c", &script]).await, (number, format!("{number}\n")));
        }
    });
    timeout(SOON, futures::future::join_all(running)).await.unwrap();
    println!("20 commands in {:?}", before.elapsed());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_in_a_container_that_has_ended_is_unavailable() {
    let bundle = Bundle::container("exit 0");
    bundle.ran().await;
    let error = bundle.shim.run(&words(&["true"]), Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.kind(), &vk_provider::error::Kind::Unavailable, "{error}");
}
