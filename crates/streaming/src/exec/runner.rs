//! Runs a session: copies bytes between a client and a provider's session, for any protocol.

use futures::future;
use tokio::time::timeout;
use vk_provider::{
    Error, Result,
    ability::{BoxRead, BoxWrite, Exit, Session},
};

use super::{Action, CommandStatus, ProtocolVersion, resize};
use crate::{
    activity::ActivityTracker,
    limits::{SessionEnd, SessionLimits},
    stream::{self, CopyError, Direction, StreamReader, StreamWriter},
};

/// The client's streams.
#[derive(Debug)]
pub(super) struct ClientStreams {
    pub(super) stdin: Option<StreamReader>,
    pub(super) stdout: Option<StreamWriter>,
    pub(super) stderr: Option<StreamWriter>,
    pub(super) resize: Option<StreamReader>,
    pub(super) error: StreamWriter,
}

/// Runs one session.
#[derive(Debug)]
pub(super) struct SessionRunner<'a> {
    pub(super) started: Result<Session>,
    pub(super) version: ProtocolVersion,
    pub(super) action: Action,
    pub(super) limits: &'a SessionLimits,
    pub(super) activity: &'a ActivityTracker,
}

impl SessionRunner<'_> {
    /// Serves the session to its end and reports the status to the client. When this returns, the provider's session is dropped and
    /// everything for the client has been queued.
    pub(super) async fn run(self, streams: ClientStreams) -> SessionEnd {
        let Self { started, version, action, limits, activity } = self;
        let ClientStreams { stdin, stdout, stderr, resize, mut error } = streams;
        let mut outputs = OutputStreams { stdout, stderr, finish_last: version == ProtocolVersion::V1 };
        let ended = match started {
            Ok(session) => {
                let served = serve(session, stdin, &mut outputs, resize, activity);
                tokio::select! {
                    biased;
                    exit = Box::pin(served) => Some(exit),
                    () = activity.idle(limits.idle()) => None,
                }
            }
            Err(error) => Some(Err(error)),
        };
        let (status, end) = status_and_end(ended, action, limits);
        let send_status = async {
            let text = status.encode(version);
            if !text.is_empty() {
                error.send(&text).await?;
            }
            error.finish().await?;
            outputs.finish().await;
            error.flush().await
        };
        match timeout(limits.drain_timeout(&end), send_status).await {
            Ok(Ok(())) => end,
            _ if end == SessionEnd::Idle => end,
            _ => SessionEnd::ClientGone,
        }
    }
}

/// The output streams of a session.
#[derive(Debug)]
struct OutputStreams {
    stdout: Option<StreamWriter>,
    stderr: Option<StreamWriter>,
    /// Finish them after the status: a client of version 1 ignores everything after they have ended.
    finish_last: bool,
}

impl OutputStreams {
    async fn finish(&mut self) {
        for output in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            let _ = output.finish().await;
        }
    }
}

/// The status for the client, and the end for the outcome.
fn status_and_end(
    ended: Option<Result<Exit>>,
    action: Action,
    limits: &SessionLimits,
) -> (CommandStatus, SessionEnd) {
    let doing = match action {
        Action::Exec => "error executing command in container",
        Action::Attach => "error attaching to container",
    };
    match ended {
        // The exit code of a container's process is not a failure of attach.
        Some(Ok(Exit { code })) if code == 0 || action == Action::Attach => {
            (CommandStatus::Success, SessionEnd::Exited(code))
        }
        Some(Ok(Exit { code })) => (CommandStatus::Exit(code), SessionEnd::Exited(code)),
        Some(Err(error)) => {
            let report = error.report();
            (CommandStatus::Failure(format!("{doing}: {report}")), SessionEnd::Failed(report))
        }
        None => (
            CommandStatus::Failure(format!("{doing}: nothing moved for {:?}", limits.idle)),
            SessionEnd::Idle,
        ),
    }
}

/// Runs until the process has ended and all its output is sent.
async fn serve(
    session: Session,
    stdin: Option<StreamReader>,
    outputs: &mut OutputStreams,
    resize: Option<StreamReader>,
    activity: &ActivityTracker,
) -> Result<Exit, Error> {
    let Session { stdin: to_process, stdout: from_stdout, stderr: from_stderr, resize: to_terminal, exit } =
        session;
    let input = async {
        if let Some(stdin) = stdin {
            copy_input(stdin, to_process, activity).await;
        }
        future::pending::<()>().await;
    };
    let sizes = async {
        match resize {
            Some(resize) => resize::relay(resize, to_terminal).await,
            None => future::pending().await,
        }
    };
    let OutputStreams { stdout, stderr, finish_last } = outputs;
    let process = future::join3(
        exit,
        copy_output(from_stdout, stdout, *finish_last, activity),
        copy_output(from_stderr, stderr, *finish_last, activity),
    );
    tokio::select! {
        (exit, (), ()) = process => exit,
        () = input => unexpected_end(),
        () = sizes => unexpected_end(),
    }
}

/// Input and sizes never return. If that changes, this error shows it.
fn unexpected_end() -> Result<Exit, Error> {
    Err(Error::internal("serve the session: its input ended it"))
}

/// Copies the client's input to the process, and drops what the process does not take.
async fn copy_input(mut stdin: StreamReader, to: Option<BoxWrite>, activity: &ActivityTracker) {
    if let Some(mut to) = to {
        match stream::copy_from_peer(&mut stdin, &mut to, activity, Direction::ToPod).await {
            Ok(()) | Err(CopyError::Source) => return,
            Err(CopyError::Destination) => {}
        }
    }
    stream::discard(&mut stdin).await;
}

/// Copies the output of a process to the client, and then signals its end, unless that comes last.
async fn copy_output(
    from: Option<BoxRead>,
    output: &mut Option<StreamWriter>,
    finish_last: bool,
    activity: &ActivityTracker,
) {
    let Some(to) = output else { return };
    if let Some(mut from) = from {
        match stream::copy_to_peer(&mut from, to, activity, Direction::ToClient).await {
            // The exit code says how the process ended, also if its output broke.
            Ok(()) | Err(CopyError::Source) => {}
            // The client does not want it. Dropping the reader tells the process.
            Err(CopyError::Destination) => *output = None,
        }
    }
    if let (Some(to), false) = (&mut *output, finish_last) {
        let _ = to.finish().await;
        *output = None;
    }
}
