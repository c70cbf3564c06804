//! The commands that the mock's containers support.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use vk_provider::resolve::File;

use super::{
    archive,
    console::{BrokenPipe, Console, PIPE},
    files::ContainerFiles,
};
use crate::resolved_inputs::ResolvedInputs;

/// The environment of a command.
pub(super) struct CommandEnv {
    pub(super) hostname: String,
    pub(super) env: Vec<(String, String)>,
    /// Files that were copied into the container.
    pub(super) files: ContainerFiles,
    /// Files in its volumes.
    pub(super) mounts: MountedFiles,
}

/// The files in the volumes of a container.
pub(super) struct MountedFiles {
    pub(super) inputs: Option<Arc<ResolvedInputs>>,
    pub(super) container: String,
}

impl MountedFiles {
    async fn find(&self, path: &str) -> Option<File> {
        self.inputs.as_ref()?.file(&self.container, path).await
    }
}

/// Exit code of a process whose output is closed (128 + SIGPIPE).
const SIGPIPE: i32 = 141;
const NOT_FOUND: i32 = 127;

/// Runs a command and returns its exit code.
pub(super) async fn run(words: Vec<String>, mut console: Console, here: CommandEnv) -> i32 {
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

async fn builtin(words: &[&str], console: &mut Console, here: &CommandEnv) -> Result<i32, BrokenPipe> {
    match words {
        ["true" | "exit"] | [] => {}
        ["false"] => return Ok(1),
        ["exit", code] => return Ok(code.parse().unwrap_or(2)),
        ["nosuchcommand", ..] => {
            console.err("nosuchcommand: not found\n").await?;
            return Ok(NOT_FOUND);
        }
        ["err", text @ ..] | ["echo", text @ .., ">&2"] => {
            console.err(format!("{}\n", text.join(" "))).await?;
        }
        ["cat"] => cat(console).await?,
        ["cat", path] => match here.files.read(path) {
            Some(file) => console.out(file).await?,
            None => match here.mounts.find(path).await {
                Some(file) => console.out(file.content).await?,
                None => return no_such_file(console, "cat", path).await,
            },
        },
        ["stat", "-L", "-c", "%a", path] => match here.mounts.find(path).await {
            Some(file) => console.out(format!("{:o}\n", file.mode)).await?,
            None => return no_such_file(console, "stat", path).await,
        },
        ["test", "-d", path] => return Ok(i32::from(!here.files.is_folder(path))),
        ["tar", "cf", "-", path] => return pack(path, console, &here.files).await,
        ["tar", flags @ .., "-xmf", "-"] if flags.iter().all(|flag| flag.starts_with("--")) => {
            return unpack("/", console, &here.files).await;
        }
        ["tar", flags @ .., "-xmf", "-", "-C", folder] if flags.iter().all(|flag| flag.starts_with("--")) => {
            return unpack(folder, console, &here.files).await;
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
        ["stty", "size"] => return first_size(console).await,
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

/// Copies input to output.
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

/// Prints the terminal's size each time it changes, until the input or the resize channel ends.
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
            // Sizes that arrived before the end of input are still printed.
            biased;
            size = resize.recv() => match size {
                Some(size) => console.out(format!("{}x{}\n", size.width, size.height)).await?,
                None => return Ok(0),
            },
            () = &mut input_ends => return Ok(0),
        }
    }
}

/// Prints the first size of the terminal in the format of `stty size`.
async fn first_size(console: &mut Console) -> Result<i32, BrokenPipe> {
    let Some(mut resize) = console.resize.take() else {
        console.err("stty: standard input: not a tty\n").await?;
        return Ok(1);
    };
    match tokio::time::timeout(Duration::from_secs(5), resize.recv()).await {
        Ok(Some(size)) => console.out(format!("{} {}\n", size.height, size.width)).await?,
        _ => console.out("0 0\n").await?,
    }
    Ok(0)
}

async fn no_such_file(console: &mut Console, program: &str, path: &str) -> Result<i32, BrokenPipe> {
    console.err(format!("{program}: {path}: No such file or directory\n")).await?;
    Ok(1)
}

/// Writes a file or a directory as an archive.
async fn pack(path: &str, console: &mut Console, files: &ContainerFiles) -> Result<i32, BrokenPipe> {
    let found = match files.read(path) {
        Some(file) => vec![(path.to_owned(), file)],
        None => files.below(path),
    };
    if found.is_empty() {
        return no_such_file(console, "tar", path).await;
    }
    let Ok(packed) = archive::pack(&found) else {
        console.err(format!("tar: {path}: Cannot write\n")).await?;
        return Ok(2);
    };
    console.out(packed).await?;
    Ok(0)
}

/// Reads an archive and stores its files in a directory.
async fn unpack(folder: &str, console: &mut Console, files: &ContainerFiles) -> Result<i32, BrokenPipe> {
    let mut input = BytesMut::new();
    if let Some(mut stdin) = console.stdin.take() {
        while stdin.read_buf(&mut input).await.is_ok_and(|length| length > 0) {}
    }
    let Ok(unpacked) = archive::unpack(&input.freeze()) else {
        console.err("tar: this does not look like a tar archive\n").await?;
        return Ok(2);
    };
    for (name, content) in unpacked {
        if files.write(&format!("{folder}/{name}"), content).is_err() {
            console.err(format!("tar: {name}: No space left on device\n")).await?;
            return Ok(2);
        }
    }
    Ok(0)
}
