//! `kubectl exec`.

use tokio::process::Command;

use super::KubectlSession;

/// Standard output and standard error arrive separately.
pub async fn output_and_errors(session: &KubectlSession) {
    let output = session.run(&["exec", "web", "--", "echo", "hello", "world"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "hello world\n"), "{output:?}");
    let errors = session.run(&["exec", "web", "-c", "main", "--", "sh", "-c", "echo oops >&2"]).await;
    assert_eq!((errors.code, errors.stdout.as_str()), (Some(0), ""), "{errors:?}");
    assert!(errors.stderr.contains("oops"), "{errors:?}");
}

/// kubectl exits with the exit code of the command.
pub async fn exit_codes(session: &KubectlSession) {
    for code in [0, 1, 42, 137] {
        let output = session.run(&["exec", "web", "--", "sh", "-c", &format!("exit {code}")]).await;
        assert_eq!(output.code, Some(code), "{output:?}");
    }
}

/// Input from a pipe reaches the command, including its end.
pub async fn input_until_its_end(session: &KubectlSession) {
    let echoed = session.run_ok_with(&["exec", "-i", "web", "--", "cat"], b"one\ntwo\n").await;
    assert_eq!(echoed, "one\ntwo\n");
    assert_eq!(session.run_ok_with(&["exec", "-i", "web", "--", "cat"], b"").await, "");
    let much: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let (end, back) = session.raw(session.command(&["exec", "-i", "web", "--", "cat"]), &much).await;
    assert!(end.success(), "{end:?}");
    assert!(back == much, "{} bytes came back of {}", back.len(), much.len());
}

/// Large output arrives completely.
pub async fn much_output(session: &KubectlSession, bytes: usize) {
    let count = bytes.to_string();
    let command = session.command(&["exec", "web", "--", "head", "-c", &count, "/dev/zero"]);
    let (end, output) = session.raw(command, &[]).await;
    assert!(end.success(), "{end:?}");
    assert_eq!(output.len(), bytes);
}

/// With a terminal, the command has a terminal of the same size.
pub async fn terminal(session: &KubectlSession) {
    let kubectl = session.target.kubectl.display();
    let on_terminal = async |inner: &str| {
        let script = format!(
            "stty cols 132 rows 43; {kubectl} --namespace {} exec -it web -- {inner}",
            session.namespace
        );
        let mut command = Command::new("script");
        session.set_environment(&mut command);
        // `script` allocates a terminal.
        command.args(["--quiet", "--return", "--command", &script, "/dev/null"]);
        let (end, output) = session.raw(command, &[]).await;
        (end.code, String::from_utf8_lossy(&output).into_owned())
    };
    let (code, output) = on_terminal("tty").await;
    assert!(code == Some(0) && output.contains("/dev/pts/"), "{code:?} {output:?}");
    let (mut code, mut output) = on_terminal("stty size").await;
    if !output.contains("43 132") {
        // The size is sent after the start, and a quick command does not see it.
        (code, output) = on_terminal("sh -c 'sleep 1; stty size'").await;
    }
    assert!(code == Some(0) && output.contains("43 132"), "{code:?} {output:?}");
    let (code, output) = on_terminal("sh -c 'exit 7'").await;
    assert_eq!(code, Some(7), "{output:?}");
    let without = session.run(&["exec", "web", "--", "tty"]).await;
    assert!(without.stdout.contains("not a tty"), "{without:?}");
}

/// An unknown container and an unknown command.
pub async fn refusals(session: &KubectlSession) {
    let unknown = session.run(&["exec", "web", "-c", "nobody", "--", "true"]).await;
    assert!(!unknown.success() && unknown.stderr.contains("nobody"), "{unknown:?}");
    let missing = session.run(&["exec", "web", "--", "nosuchcommand"]).await;
    assert!(!missing.success(), "{missing:?}");
}
