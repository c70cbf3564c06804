//! Commands in containers. The containers need `echo`, `cat`, `env`, `sleep` and `sh`.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vk_provider::{
    ContainerRef, Result,
    ability::{ExecOptions, Session, Started},
    error::Kind,
};

use crate::conformance::{
    caller::{Caller, describe_error},
    context::CaseContext,
    pod_builder::{APP, SETTINGS, VARIABLE, reference},
    pod_status,
    result::{Outcome, Stop, ensure},
    subject::{ContainerBehavior, Feature},
};

const ALL: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };

/// Output and exit code of a command are returned, also for concurrent commands.
pub(crate) async fn a_command_has_output_and_a_code(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    caller.exec()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let app = made.container(APP);
    let (hello, seven) = tokio::join!(
        run(&caller, &app, &["echo", "hello"], ""),
        run(&caller, &app, &["sh", "-c", "exit 7"], "")
    );
    let (hello, seven) = (hello?, seven?);
    let advice = "hand out the process's own streams and exit code";
    ensure(hello == (0, "hello\n".to_owned()), || format!("`echo hello` ended as {hello:?}"), advice)?;
    ensure(seven.0 == 7, || format!("`sh -c 'exit 7'` ended with {}", seven.0), advice)
}

/// A command reads its input to the end.
pub(crate) async fn a_command_reads_its_input(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    caller.exec()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let input = "one\ntwo\n";
    let (code, output) = run(&caller, &made.container(APP), &["cat"], input).await?;
    ensure(
        code == 0 && output == input,
        || format!("`cat` with {input:?} ended with {code} and {output:?}"),
        "pass input on as it comes, and its end when the stream is shut down",
    )
}

/// Running a command in an unknown container or pod fails.
pub(crate) async fn a_command_for_nobody_is_not_found(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    let exec = caller.exec()?;
    let (made, _) = caller.start(&context.pod().build()).await?;
    let stranger = reference(&context.pod().build());
    let words = ["true".to_owned()];
    for container in [made.container("nobody"), stranger.container(APP)] {
        let answer = caller.call("exec.start", exec.start(&container, &words, &ALL)).await?;
        let found = answer.as_ref().err().is_none_or(|error| *error.kind() != Kind::NotFound);
        ensure(
            !found,
            || format!("a command in {container} answered {answer:?}"),
            "answer NotFound for a pod or container that the backend does not have",
        )?;
    }
    Ok(())
}

/// A container that has ended exists, but runs no commands.
pub(crate) async fn a_command_in_an_ended_container_is_unavailable(context: &CaseContext) -> Outcome {
    context.needs(Feature::Endings)?;
    let caller = context.open().await?;
    let exec = caller.exec()?;
    let pod = context.pod().restart("Never").behaves(ContainerBehavior::Ends(0)).build();
    let made = caller.create(&pod).await?;
    let advice = "answer Unavailable for a container that does not run";
    caller.shows(&made, "the pod has ended", advice, pod_status::is_final).await?;
    let words = ["true".to_owned()];
    let answer = caller.call("exec.start", exec.start(&made.container(APP), &words, &ALL)).await?;
    let unavailable = answer.as_ref().err().is_some_and(|error| *error.kind() == Kind::Unavailable);
    ensure(unavailable, || format!("a command in an ended container answered {answer:?}"), advice)
}

/// Dropping a session does not affect the container, and the next command runs.
pub(crate) async fn a_dropped_session_leaves_the_container_alone(context: &CaseContext) -> Outcome {
    let advice = "end the command and its streams when the session is dropped, and nothing else";
    let caller = context.open().await?;
    caller.exec()?;
    let (made, before) = caller.start(&context.pod().build()).await?;
    let app = made.container(APP);
    drop(begin(&caller, &app, &["sleep", "1000"]).await?);
    let (code, _) = run(&caller, &app, &["echo", "next"], "").await?;
    ensure(code == 0, || format!("the next command ended with {code}"), advice)?;
    caller.undisturbed(&made, &before, advice).await
}

/// A container gets the environment of the resolver.
pub(crate) async fn a_container_gets_its_environment(context: &CaseContext) -> Outcome {
    let caller = context.open().await?;
    caller.exec()?;
    let pod = context.pod().with_settings().build();
    if let Err(error) = caller.try_create(&pod).await?
        && *error.kind() == Kind::Unsupported
    {
        return Err(Stop::DoesNotApply(format!("the provider refuses volumes: {}", error.report())));
    }
    let (made, _) = caller.start(&pod).await?;
    let (_, output) = run(&caller, &made.container(APP), &["env"], "").await?;
    let wanted = format!("{VARIABLE}={}", SETTINGS.2);
    ensure(
        output.lines().any(|line| line == wanted),
        || format!("`env` does not print {wanted} but {output:?}"),
        "take the environment from bundle.resolver.container(..) when the container starts",
    )
}

/// Runs a command to its end and returns its exit code and output.
pub(crate) async fn run(
    caller: &Caller,
    container: &ContainerRef,
    words: &[&str],
    input: &str,
) -> Outcome<(i32, String)> {
    let session = begin(caller, container, words).await?;
    let advice = "hand out the streams that were asked for, end the output when the process has ended, and resolve exit";
    let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) =
        (session.stdin, session.stdout, session.stderr)
    else {
        return Err(Stop::violated("a session lacks one of the streams that were asked for", advice));
    };
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let feed = async {
        // A process that has ended does not read its input.
        let _ = stdin.write_all(input.as_bytes()).await;
        let _ = stdin.shutdown().await;
    };
    let all = async {
        tokio::join!(session.exit, feed, stdout.read_to_end(&mut output), stderr.read_to_end(&mut errors))
    };
    let (exit, (), out, _) = caller.call(&format!("the command {words:?}"), all).await?;
    out.map_err(|error| Stop::violated(format!("reading the output: {error}"), advice))?;
    let exit = exit.map_err(|error| Stop::violated(describe_error("the session's exit", &error), advice))?;
    Ok((exit.code, String::from_utf8_lossy(&output).into_owned()))
}

async fn begin(caller: &Caller, container: &ContainerRef, words: &[&str]) -> Outcome<Session> {
    let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let started = caller.call("exec.start", caller.exec()?.start(container, &command, &ALL)).await?;
    session(started, "exec.start")
}

/// The session of a started command; addresses are for the server to proxy.
pub(crate) fn session(started: Result<Started>, call: &str) -> Outcome<Session> {
    match started {
        Ok(Started::Session(session)) => Ok(session),
        Ok(Started::Url(_)) => Err(Stop::DoesNotApply(
            "the provider answers with an address, which the server proxies".to_owned(),
        )),
        Err(error) => Err(Stop::violated(describe_error(call, &error), "start it in a container that runs")),
    }
}
