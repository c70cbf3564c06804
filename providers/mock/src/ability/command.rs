//! The few commands that the mock's containers know.

use std::{sync::Arc, time::Duration};

use tokio::io::AsyncReadExt;

use super::console::{BrokenPipe, Console, PIPE};
use crate::inputs::Inputs;

/// What a command can find out about where it runs.
pub(super) struct Surroundings {
    pub(super) hostname: String,
    pub(super) env: Vec<(String, String)>,
    /// The pod's volumes.
    pub(super) files: Files,
}

/// The files that a container sees in its volumes.
#[derive(Default)]
pub(super) struct Files {
    pub(super) inputs: Option<Arc<Inputs>>,
    pub(super) container: String,
}

/// The code of a process that nobody reads from (128 + SIGPIPE).
const SIGPIPE: i32 = 141;
const NOT_FOUND: i32 = 127;

/// Runs a command to its end.
pub(super) async fn run(words: Vec<String>, mut console: Console, here: Surroundings) -> i32 {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let code = match words.as_slice() {
        ["sh" | "/bin/sh" | "bash" | "/bin/bash", "-c", script, ..] => {
            let inner: Vec<&str> =
                script.split_whitespace().map(|word| word.trim_matches(['"', '\''])).collect();
            builtin(&inner, &mut console, &here).await
        }
        words => builtin(words, &mut console, &here).await,
    };
    code.unwrap_or(SIGPIPE)
}

async fn builtin(words: &[&str], console: &mut Console, here: &Surroundings) -> Result<i32, BrokenPipe> {
    match words {
        ["true" | "exit"] | [] => {}
        ["false"] => return Ok(1),
        ["exit", code] => return Ok(code.parse().unwrap_or(2)),
        ["nosuchcommand", ..] => {
            console.err("nosuchcommand: not found\n").await?;
            return Ok(NOT_FOUND);
        }
        ["err", text @ ..] => console.err(format!("{}\n", text.join(" "))).await?,
        ["cat"] => cat(console).await?,
        ["cat", path] => {
            let found = match &here.files.inputs {
                Some(inputs) => inputs.file(&here.files.container, path).await,
                None => None,
            };
            let Some(file) = found else {
                console.err(format!("cat: {path}: No such file or directory\n")).await?;
                return Ok(1);
            };
            console.out(file.content).await?;
        }
        ["env"] => {
            for (name, value) in &here.env {
                console.out(format!("{name}={value}\n")).await?;
            }
        }
        ["hostname"] => console.out(format!("{}\n", here.hostname)).await?,
        ["sleep", time] => {
            let seconds: Option<f64> = time.parse().ok();
            let Some(time) = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) else {
                console.err(format!("sleep: invalid time interval '{time}'\n")).await?;
                return Ok(1);
            };
            tokio::time::sleep(time).await;
        }
        ["tty"] if console.tty => console.out("/dev/pts/0\n").await?,
        ["tty"] => {
            console.out("not a tty\n").await?;
            return Ok(1);
        }
        ["size"] => return size(console).await,
        ["yes", count] => {
            let mut left: usize = count.parse().unwrap_or(0);
            let block = "y\n".repeat(PIPE / 2);
            while left > 0 {
                let lines = left.min(PIPE / 2);
                console.out(&block[..lines * 2]).await?;
                left -= lines;
            }
        }
        ["head", "-c", count, "/dev/zero"] => {
            let mut left: usize = count.parse().unwrap_or(0);
            let block = vec![0_u8; PIPE];
            while left > 0 {
                let bytes = left.min(PIPE);
                console.out(&block[..bytes]).await?;
                left -= bytes;
            }
        }
        ["echo", text @ ..] | text => console.out(format!("{}\n", text.join(" "))).await?,
    }
    Ok(0)
}

/// Input to output, until the input ends.
async fn cat(console: &mut Console) -> Result<(), BrokenPipe> {
    let Some(mut stdin) = console.stdin.take() else { return Ok(()) };
    let mut buffer = vec![0; PIPE];
    loop {
        match stdin.read(&mut buffer).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(length) => console.out(&buffer[..length]).await?,
        }
    }
}

/// The terminal's size, each time it changes, until the input ends or nobody can change it any more.
async fn size(console: &mut Console) -> Result<i32, BrokenPipe> {
    let Some(mut resize) = console.resize.take() else {
        console.err("not a tty\n").await?;
        return Ok(1);
    };
    let mut stdin = console.stdin.take();
    let input_ends = async {
        match &mut stdin {
            Some(stdin) => {
                let mut buffer = [0; 64];
                while stdin.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
            }
            None => std::future::pending().await,
        }
    };
    tokio::pin!(input_ends);
    loop {
        tokio::select! {
            // Sizes that came before the end of input are still told.
            biased;
            size = resize.recv() => match size {
                Some(size) => console.out(format!("{}x{}\n", size.width, size.height)).await?,
                None => return Ok(0),
            },
            () = &mut input_ends => return Ok(0),
        }
    }
}
