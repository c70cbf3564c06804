//! Commands with a terminal.

use std::{fs::OpenOptions, io, os::fd::OwnedFd, process::Stdio, sync::Arc};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command as Process,
    sync::mpsc,
    task::JoinSet,
};

use super::{
    Handle,
    command::{KillGroup, nsenter},
    stop,
};
use crate::exec::{Command, Input, Output, Running};

/// Starts a command with a terminal in a container.
pub(super) fn exec(handle: &Handle, command: &Command) -> io::Result<Running> {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    let name = ptsname(&controller, Vec::new())?;
    let name = name.into_string().map_err(io::Error::other)?;
    let terminal = || OpenOptions::new().read(true).write(true).open(&name).map(Stdio::from);
    let mut process = Process::new("/usr/bin/setsid");
    process.args(["--ctty", "--wait"]).args(nsenter(handle)).args(&command.words);
    process.env_clear().envs(handle.environment.iter().cloned()).env("TERM", "xterm");
    process.stdin(terminal()?).stdout(terminal()?).stderr(terminal()?);
    // setsid makes a session and a group of it, without another process, if it leads none yet.
    process.kill_on_drop(true);
    let mut child = process.spawn()?;
    // The command keeps the terminals of this process open until it is dropped.
    drop(process);
    let group = KillGroup::of(&child);
    let (input, receiver) = mpsc::channel(16);
    let (sender, output) = mpsc::channel(16);
    let reader = controller.try_clone()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(write_input(receiver, Arc::new(controller)));
    tasks.spawn(async move {
        let _killed_when_dropped = group;
        let mut reader = File::from_std(reader.into());
        let mut buffer = vec![0; 8 << 10];
        // Reading fails when nobody has the terminal any more.
        while let Ok(length @ 1..) = reader.read(&mut buffer).await {
            if sender.send(Output::Out(buffer[..length].to_vec())).await.is_err() {
                return;
            }
        }
        let code = child.wait().await.map_or(-1, |status| stop::code(status).0);
        let _ = sender.send(Output::End(code)).await;
    });
    Ok(Running::new(input, output, tasks))
}

async fn write_input(mut input: mpsc::Receiver<Input>, terminal: Arc<OwnedFd>) {
    let Ok(writer) = terminal.try_clone() else { return };
    let mut writer = File::from_std(writer.into());
    while let Some(input) = input.recv().await {
        match input {
            Input::Data(bytes) => {
                if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
                    return;
                }
            }
            Input::Size { columns, rows } => {
                let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
                let _ = tcsetwinsize(&*terminal, size);
            }
        }
    }
}
