//! `kubectl exec`.

use tokio::process::Command;

use super::Stage;

/// Output and errors each arrive where they belong.
pub async fn output_and_errors(stage: &Stage) {
    let output = stage.run(&["exec", "web", "--", "echo", "hello", "world"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "hello world\n"), "{output:?}");
    let errors = stage.run(&["exec", "web", "-c", "main", "--", "sh", "-c", "echo oops >&2"]).await;
    assert_eq!((errors.code, errors.stdout.as_str()), (Some(0), ""), "{errors:?}");
    assert!(errors.stderr.contains("oops"), "{errors:?}");
}

/// The exit code of the command is kubectl's.
pub async fn exit_codes(stage: &Stage) {
    for code in [0, 1, 42, 137] {
        let output = stage.run(&["exec", "web", "--", "sh", "-c", &format!("exit {code}")]).await;
        assert_eq!(output.code, Some(code), "{output:?}");
    }
}

/// Input from a pipe reaches the command, and its end too.
pub async fn input_until_its_end(stage: &Stage) {
    let echoed = stage.good_with(&["exec", "-i", "web", "--", "cat"], b"one\ntwo\n").await;
    assert_eq!(echoed, "one\ntwo\n");
    assert_eq!(stage.good_with(&["exec", "-i", "web", "--", "cat"], b"").await, "");
    let much: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let (end, back) = stage.raw(stage.command(&["exec", "-i", "web", "--", "cat"]), &much).await;
    assert!(end.success(), "{end:?}");
    assert!(back == much, "{} bytes came back of {}", back.len(), much.len());
}

/// Much output arrives whole.
pub async fn much_output(stage: &Stage, bytes: usize) {
    let count = bytes.to_string();
    let command = stage.command(&["exec", "web", "--", "head", "-c", &count, "/dev/zero"]);
    let (end, output) = stage.raw(command, &[]).await;
    assert!(end.success(), "{end:?}");
    assert_eq!(output.len(), bytes);
}

/// On a terminal the command has one, of the right size.
pub async fn terminal(stage: &Stage) {
    let kubectl = stage.subject.kubectl.display();
    let on_terminal = async |inner: &str| {
        let script = format!(
            "stty cols 132 rows 43; {kubectl} --namespace {} exec -it web -- {inner}",
            stage.namespace
        );
        let mut command = Command::new("script");
        stage.surround(&mut command);
        // Without a terminal of our own: `script` makes one.
        command.args(["--quiet", "--return", "--command", &script, "/dev/null"]);
        let (end, output) = stage.raw(command, &[]).await;
        (end.code, String::from_utf8_lossy(&output).into_owned())
    };
    let (code, output) = on_terminal("tty").await;
    assert!(code == Some(0) && output.contains("/dev/pts/"), "{code:?} {output:?}");
    let (mut code, mut output) = on_terminal("stty size").await;
    if !output.contains("43 132") {
        // The size is told after the start, and a command that is quick does not see it.
        (code, output) = on_terminal("sh -c 'sleep 1; stty size'").await;
    }
    assert!(code == Some(0) && output.contains("43 132"), "{code:?} {output:?}");
    let (code, output) = on_terminal("sh -c 'exit 7'").await;
    assert_eq!(code, Some(7), "{output:?}");
    let without = stage.run(&["exec", "web", "--", "tty"]).await;
    assert!(without.stdout.contains("not a tty"), "{without:?}");
}

/// A container that there is not, and a command that there is not.
pub async fn refusals(stage: &Stage) {
    let unknown = stage.run(&["exec", "web", "-c", "nobody", "--", "true"]).await;
    assert!(!unknown.success() && unknown.stderr.contains("nobody"), "{unknown:?}");
    let missing = stage.run(&["exec", "web", "--", "nosuchcommand"]).await;
    assert!(!missing.success(), "{missing:?}");
}
