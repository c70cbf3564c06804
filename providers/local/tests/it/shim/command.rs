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

async fn run_to_exit(bundle: &Bundle, command: &[&str]) -> (i32, String) {
    match bundle.shim.run(&words(command), SOON).await.unwrap() {
        ExecOutput::Exited { code, output } => (code, String::from_utf8_lossy(&output).into_owned()),
        ExecOutput::TimedOut { message } => panic!("{message}; {}", bundle.shim_errors()),
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_runs_in_the_container_and_returns_its_exit_code() {
    let bundle = Bundle::container("sleep 1000").user(1000);
    bundle.start().await.unwrap();
    let (code, output) =
        run_to_exit(&bundle, &["sh", "-c", "id -u; echo $GREETING $HOME; pwd; readlink /proc/1/exe; exit 6"])
            .await;
    assert_eq!((code, output.as_str()), (6, "1000\nhello /srv/web\n/\n/bin/busybox\n"));
    let (code, output) = run_to_exit(&bundle, &["sh", "-c", "cat /proc/self/cgroup"]).await;
    let cgroup = bundle.launch.cgroup.as_ref().unwrap();
    assert!(code == 0 && output.contains(cgroup.as_str()), "{output}");
    let (code, _) = run_to_exit(&bundle, &["sh", "-c", "kill -9 $$"]).await;
    assert_eq!(code, 137);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_has_the_privileges_of_the_container() {
    let mut bundle = Bundle::container("grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; sleep 1000");
    bundle.spec.linux_mut().as_mut().unwrap().set_seccomp(Some(no_folders()));
    bundle.start().await.unwrap();
    bundle.wait_for_log("Seccomp:").await;
    let (code, output) =
        run_to_exit(&bundle, &["grep", "-E", "Cap|NoNewPrivs|Seccomp:", "/proc/self/status"]).await;
    assert_eq!((code, output.lines().collect::<Vec<_>>().join(";")), (0, bundle.log_lines().join(";")));
    assert!(output.contains("Seccomp:\t2"), "{output}");
    let (code, output) = run_to_exit(&bundle, &["mkdir", "/tmp/forbidden"]).await;
    assert!(code == 1 && output.contains("not permitted"), "{output}");
}

/// A seccomp filter that forbids creating directories.
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
async fn a_command_of_another_user_is_filtered_with_and_without_no_new_privs() {
    for renounced in [None, Some(true)] {
        let script = "grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; sleep 1000";
        let mut bundle = Bundle::container(script).user(1000);
        bundle.spec.linux_mut().as_mut().unwrap().set_seccomp(Some(no_folders()));
        bundle.spec.process_mut().as_mut().unwrap().set_no_new_privileges(renounced);
        bundle.start().await.unwrap();
        bundle.wait_for_log("Seccomp:").await;
        let status = ["grep", "-E", "Cap|NoNewPrivs|Seccomp:", "/proc/self/status"];
        let (code, output) = run_to_exit(&bundle, &status).await;
        assert_eq!((code, output.lines().collect::<Vec<_>>().join(";")), (0, bundle.log_lines().join(";")));
        assert!(output.contains("Seccomp:\t2"), "{output}");
        let (code, output) = run_to_exit(&bundle, &["mkdir", "/tmp/forbidden"]).await;
        assert!(code == 1 && output.contains("not permitted"), "{output}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_starts_in_a_directory_that_its_user_cannot_enter() {
    let mut bundle = Bundle::container("sleep 1000").user(1000);
    let inner = bundle.shim.dir().join("rootfs/closed/inner");
    std::fs::create_dir_all(&inner).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(inner.parent().unwrap(), closed).unwrap();
    bundle.spec.process_mut().as_mut().unwrap().set_cwd("/closed/inner".into());
    bundle.start().await.unwrap();
    let (code, output) = run_to_exit(&bundle, &["readlink", "/proc/self/cwd"]).await;
    assert_eq!((code, output.as_str()), (0, "/closed/inner\n"));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_starting_command_exposes_nothing_of_the_host_to_the_container() {
    // With CAP_SYS_PTRACE a process can look into the root directories of others through `/proc`.
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
    bundle.wait_for_log("up").await;
    for _ in 0..60 {
        assert_eq!(run_to_exit(&bundle, &["true"]).await.0, 0);
    }
    assert_eq!(bundle.log_lines(), ["up"]);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_passwd_file_that_blocks_does_not_block_a_command() {
    let bundle = Bundle::container("rm /etc/passwd; mkfifo /etc/passwd; echo up; sleep 1000");
    bundle.start().await.unwrap();
    bundle.wait_for_log("up").await;
    assert_eq!(run_to_exit(&bundle, &["sh", "-c", "echo $HOME"]).await, (0, "/\n".to_owned()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn each_container_has_its_own_session_keyring() {
    let script = "grep -o '^.*keyring *_ses' /proc/keys | cut -d' ' -f1; echo up; sleep 1000";
    let [one, other] = [(); 2].map(|()| {
        // Another user only sees its own keys.
        let mut bundle = Bundle::container(script).user(1000);
        bundle.spec.linux_mut().as_mut().unwrap().set_masked_paths(None);
        bundle
    });
    for bundle in [&one, &other] {
        bundle.start().await.unwrap();
        bundle.wait_for_log("up").await;
    }
    assert_eq!((one.log_lines().len(), other.log_lines().len()), (2, 2), "{:?}", one.log_lines());
    assert_ne!(one.log_lines()[0], other.log_lines()[0]);
    let command = script.split(';').next().unwrap();
    assert_eq!(run_to_exit(&one, &["sh", "-c", command]).await, (0, format!("{}\n", one.log_lines()[0])));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_binary_of_a_helper_is_on_a_read_only_mount() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    let _stuck = bundle.stuck();
    let command = words(&["true"]);
    let mut running = std::pin::pin!(bundle.shim.run(&command, Duration::ZERO));
    let found = eventually("the helper hangs", SOON, async || bundle.helper("exec").ok_or("none"));
    let helper = tokio::select! {
        run_to_exit = &mut running => panic!("{run_to_exit:?}"),
        helper = found => helper,
    };
    // A running binary cannot be written anyway; this protects it from a process that keeps it open until it exits.
    let mount = rustix::fs::statvfs(format!("/proc/{helper}/exe")).unwrap();
    assert!(mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_missing_command_has_the_error_of_runc() {
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
    assert_eq!(run_to_exit(&bundle, &["true"]).await.0, 0);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_large_input_reaches_a_command_completely() {
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
async fn a_large_output_arrives_completely_with_backpressure() {
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
async fn a_command_with_a_terminal_gets_one_of_the_container() {
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
async fn dropping_a_session_kills_its_command_but_not_the_container() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    for tty in [false, true] {
        let options = ExecOptions { stdin: true, stdout: true, stderr: !tty, tty };
        let script = words(&["sh", "-c", "trap '' HUP TERM; touch /tmp/there; (sleep 2000 &); sleep 2000"]);
        let session = bundle.shim.exec(&script, &options).await.unwrap();
        eventually("it runs", SOON, async || {
            let (code, output) = run_to_exit(&bundle, &["test", "-e", "/tmp/there"]).await;
            if code == 0 { Ok(()) } else { Err(output) }
        })
        .await;
        drop(session);
        eventually("all processes of the command are gone", SOON, async || {
            let (_, output) = run_to_exit(&bundle, &["ps"]).await;
            if output.contains("sleep 2000") { Err(output) } else { Ok(()) }
        })
        .await;
        run_to_exit(&bundle, &["rm", "/tmp/there"]).await;
    }
    assert!(alive(bundle.pid()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn concurrent_commands_do_not_interfere() {
    let bundle = Bundle::container("sleep 1000");
    bundle.start().await.unwrap();
    let before = Instant::now();
    let running = (0..20).map(|number| {
        let bundle = &bundle;
        async move {
            let script = format!("echo {number}; exit {number}");
            assert_eq!(run_to_exit(bundle, &["sh", "-c", &script]).await, (number, format!("{number}\n")));
        }
    });
    timeout(SOON, futures::future::join_all(running)).await.unwrap();
    println!("20 commands in {:?}", before.elapsed());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_command_in_an_exited_container_is_unavailable() {
    let bundle = Bundle::container("exit 0");
    bundle.run_to_exit().await;
    let error = bundle.shim.run(&words(&["true"]), Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.kind(), &vk_provider::error::Kind::Unavailable, "{error}");
}
