//! Commands in fake containers.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use futures::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use vk_provider::{
    Result,
    ability::{BoxDuplex, BoxRead, BoxWrite, ExecOptions, Exit, Session},
};

use super::script::{KILLED, Script};

/// Buffer size of a stream.
const BUFFER: usize = 64 << 10;

/// A command and its environment.
pub(super) struct Command {
    pub(super) words: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) file_there: bool,
    /// The last word as a path on the host, if it is in a mount.
    pub(super) on_host: Option<PathBuf>,
}

/// The outcome of a command.
pub(super) struct CommandOutcome {
    pub(super) takes: Duration,
    pub(super) code: i32,
    pub(super) output: Vec<u8>,
    /// Whether it copies stdin to stdout.
    pub(super) copies: bool,
}

// === impl Command ===

impl Command {
    pub(super) fn outcome(&self) -> CommandOutcome {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let done = |code, output: String| CommandOutcome {
            takes: Duration::ZERO,
            code,
            output: output.into_bytes(),
            copies: false,
        };
        match words.as_slice() {
            ["env"] => done(0, lines(self.env.iter().map(|(name, value)| format!("{name}={value}")))),
            ["cat"] => CommandOutcome { copies: true, ..done(0, String::new()) },
            ["cat", _] => match self.on_host.as_ref().and_then(|path| fs::read(path).ok()) {
                Some(output) => CommandOutcome { output, ..done(0, String::new()) },
                None => done(1, String::new()),
            },
            ["stat", "-L", "-c", "%a", _] => {
                match self.on_host.as_ref().and_then(|path| fs::metadata(path).ok()) {
                    Some(found) => done(0, format!("{:o}\n", found.permissions().mode() & 0o777)),
                    None => done(1, String::new()),
                }
            }
            ["test", "-f", _] => done(i32::from(!self.file_there), String::new()),
            ["true"] => done(0, String::new()),
            ["false"] => done(1, String::new()),
            _ => {
                let Ok(script) = Script::read(&self.words) else {
                    return done(127, format!("{}: not found\n", words.first().copied().unwrap_or_default()));
                };
                let end = script.end();
                let takes = end.map_or(Duration::MAX, |end| end.after);
                let output = lines(script.lines(takes).into_iter().map(|(_, text)| text.to_owned()));
                CommandOutcome { takes, ..done(end.map_or(KILLED, |end| end.code), output) }
            }
        }
    }
}

/// Joins lines with line ends.
fn lines(all: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for line in all {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Runs a command with streams.
pub(super) fn session(outcome: CommandOutcome, options: ExecOptions) -> Session {
    let (stdin, mut input) = duplex(BUFFER);
    let (mut output, stdout) = duplex(BUFFER);
    let (errors, stderr) = duplex(BUFFER);
    let takes_input = options.stdin;
    let work = async move {
        let _ = output.write_all(&outcome.output).await;
        if outcome.copies && takes_input {
            let mut buffer = vec![0; 8 << 10];
            while let Ok(read @ 1..) = input.read(&mut buffer).await {
                if output.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
        }
        if outcome.takes > Duration::ZERO {
            tokio::time::sleep(outcome.takes.min(Duration::from_hours(24))).await;
        }
        drop((output, errors));
        Result::Ok(Exit { code: outcome.code })
    };
    Session {
        stdin: options.stdin.then(|| Box::new(stdin) as BoxWrite),
        stdout: options.stdout.then(|| Box::new(stdout) as BoxRead),
        stderr: (options.stderr && !options.tty).then(|| Box::new(stderr) as BoxRead),
        resize: None,
        exit: work.boxed(),
    }
}

/// Streams of a silent process.
pub(super) fn silent(options: ExecOptions) -> Session {
    let outcome = CommandOutcome { takes: Duration::MAX, code: 0, output: Vec::new(), copies: false };
    session(outcome, options)
}

/// A connection that stays open as long as its other end.
pub(super) fn connection() -> (BoxDuplex, DuplexStream) {
    let (here, there) = duplex(BUFFER);
    (Box::new(here), there)
}
