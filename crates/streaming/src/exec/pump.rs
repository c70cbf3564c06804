//! Moves bytes between a client and a provider's session, whatever the protocol.

use futures::future;
use tokio::time::timeout;
use vk_provider::{
    Error, Result,
    ability::{BoxRead, BoxWrite, Exit, Session},
};

use super::{Action, Status, Version, resize};
use crate::{
    limits::{End, Limits},
    meter::Meter,
    wire::{self, Broken, Input, Output, Way},
};

/// The client's side of a session.
#[derive(Debug)]
pub(super) struct Wires {
    pub(super) stdin: Option<Input>,
    pub(super) stdout: Option<Output>,
    pub(super) stderr: Option<Output>,
    pub(super) resize: Option<Input>,
    pub(super) error: Output,
}

/// What is to be done.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) started: Result<Session>,
    pub(super) version: Version,
    pub(super) action: Action,
    pub(super) limits: &'a Limits,
    pub(super) meter: &'a Meter,
}

impl Job<'_> {
    /// Serves the session to its end and tells the client how it ended. When this returns the provider's session is
    /// gone, and everything for the client is on its way.
    pub(super) async fn run(self, wires: Wires) -> End {
        let Self { started, version, action, limits, meter } = self;
        let Wires { stdin, stdout, stderr, resize, mut error } = wires;
        let mut outputs = Outputs { stdout, stderr, last: version == Version::V1 };
        let ended = match started {
            Ok(session) => {
                let served = serve(session, stdin, &mut outputs, resize, meter);
                tokio::select! {
                    biased;
                    exit = Box::pin(served) => Some(exit),
                    () = meter.idle(limits.idle()) => None,
                }
            }
            Err(error) => Some(Err(error)),
        };
        let (status, end) = told(ended, action, limits);
        let telling = async {
            let text = status.encode(version);
            if !text.is_empty() {
                error.send(&text).await?;
            }
            error.finish().await?;
            outputs.finish().await;
            error.flush().await
        };
        match timeout(limits.patience(&end), telling).await {
            Ok(Ok(())) => end,
            _ if end == End::Idle => end,
            _ => End::ClientGone,
        }
    }
}

/// The outputs of a session.
#[derive(Debug)]
struct Outputs {
    stdout: Option<Output>,
    stderr: Option<Output>,
    /// Whether their end is said after the status: a client of version 1 looks at nothing any more when they have ended.
    last: bool,
}

impl Outputs {
    async fn finish(&mut self) {
        for output in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            let _ = output.finish().await;
        }
    }
}

/// What the client is told, and what we note.
fn told(ended: Option<Result<Exit>>, action: Action, limits: &Limits) -> (Status, End) {
    let doing = match action {
        Action::Exec => "error executing command in container",
        Action::Attach => "error attaching to container",
    };
    match ended {
        // The end of a container's process is not the failure of those who watched it.
        Some(Ok(Exit { code })) if code == 0 || action == Action::Attach => {
            (Status::Success, End::Exited(code))
        }
        Some(Ok(Exit { code })) => (Status::Exit(code), End::Exited(code)),
        Some(Err(error)) => {
            let report = error.report();
            (Status::Failure(format!("{doing}: {report}")), End::Failed(report))
        }
        None => (Status::Failure(format!("{doing}: nothing moved for {:?}", limits.idle)), End::Idle),
    }
}

/// Until the process has ended and all its output is sent.
async fn serve(
    session: Session,
    stdin: Option<Input>,
    outputs: &mut Outputs,
    resize: Option<Input>,
    meter: &Meter,
) -> Result<Exit, Error> {
    let Session { stdin: to_process, stdout: from_stdout, stderr: from_stderr, resize: to_terminal, exit } =
        session;
    let input = async {
        if let Some(stdin) = stdin {
            feed(stdin, to_process, meter).await;
        }
        future::pending::<()>().await;
    };
    let sizes = async {
        match resize {
            Some(resize) => resize::relay(resize, to_terminal).await,
            None => future::pending().await,
        }
    };
    let Outputs { stdout, stderr, last } = outputs;
    let process = future::join3(
        exit,
        drain(from_stdout, stdout, *last, meter),
        drain(from_stderr, stderr, *last, meter),
    );
    tokio::select! {
        (exit, (), ()) = process => exit,
        () = input => unreachable_end(),
        () = sizes => unreachable_end(),
    }
}

/// Input and sizes wait for ever when they are done; should that change, it shows.
fn unreachable_end() -> Result<Exit, Error> {
    Err(Error::internal("serve the session: its input decided its end"))
}

/// Brings the client's input to the process, and what the process does not want to nobody.
async fn feed(mut stdin: Input, to: Option<BoxWrite>, meter: &Meter) {
    if let Some(mut to) = to {
        match wire::inward(&mut stdin, &mut to, meter, Way::ToPod).await {
            Ok(()) | Err(Broken::Source) => return,
            Err(Broken::Destination) => {}
        }
    }
    wire::discard(&mut stdin).await;
}

/// Brings the output of a process to the client, and then its end, unless that comes last.
async fn drain(from: Option<BoxRead>, output: &mut Option<Output>, last: bool, meter: &Meter) {
    let Some(to) = output else { return };
    if let Some(mut from) = from {
        match wire::outward(&mut from, to, meter, Way::ToClient).await {
            // How the process ended is said by its exit, also when its output broke off.
            Ok(()) | Err(Broken::Source) => {}
            // The client does not want it. The process learns that by the loss of its reader.
            Err(Broken::Destination) => *output = None,
        }
    }
    if let (Some(to), false) = (&mut *output, last) {
        let _ = to.finish().await;
        *output = None;
    }
}
