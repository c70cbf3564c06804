//! Stdio of a program to be started: three descriptors, or a terminal.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    fs::{Gid, Uid, fchown},
    process::{ioctl_tiocsctty, setsid},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};

use super::protocol::{self, HelperRequest};
use crate::sys;

/// The stdio that a helper gives to the program.
#[derive(Debug)]
pub(super) enum ProcessStdio {
    /// Stdin, stdout and stderr.
    Pipes([OwnedFd; 3]),
    /// A socket to send the terminal to.
    Terminal(UnixStream),
}

impl ProcessStdio {
    /// Takes the inherited descriptors; to be called once.
    pub(super) fn take(order: &HelperRequest) -> io::Result<Self> {
        let take = |number: Option<i32>, what: &str| {
            let number = number.ok_or_else(|| io::Error::other(format!("the request has no {what}")))?;
            sys::fd::take_inherited(number)
        };
        Ok(if order.tty {
            Self::Terminal(take(order.console, "console")?.into())
        } else {
            Self::Pipes([
                take(order.stdin, "stdin")?,
                take(order.stdout, "stdout")?,
                take(order.stderr, "stderr")?,
            ])
        })
    }

    /// Makes a user the owner of the pipes, so that its program can reopen `/dev/stdout`.
    pub(super) fn give_to(&self, uid: u32) {
        if let Self::Pipes(pipes) = self {
            for pipe in pipes {
                change_owner(pipe, uid);
            }
        }
    }

    /// Starts a new session and makes these the stdio of this process. A terminal is allocated from the devpts that
    /// this process sees.
    pub(super) fn enter(self, uid: Option<u32>) -> io::Result<()> {
        setsid()?;
        match self {
            Self::Pipes([stdin, stdout, stderr]) => {
                dup2_stdin(&stdin)?;
                dup2_stdout(&stdout)?;
                dup2_stderr(&stderr)?;
            }
            Self::Terminal(socket) => {
                let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
                unlockpt(&master)?;
                // Not by its path: the container controls the filesystem and could put another device there.
                let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
                let terminal = ioctl_tiocgptpeer(&master, flags)?;
                if let Some(uid) = uid {
                    change_owner(&terminal, uid);
                }
                protocol::send(&socket, b"t", &[master.as_fd()])?;
                ioctl_tiocsctty(&terminal)?;
                dup2_stdin(&terminal)?;
                dup2_stdout(&terminal)?;
                dup2_stderr(&terminal)?;
            }
        }
        Ok(())
    }
}

/// Changes the owner, except of `/dev/null`. Errors are ignored.
fn change_owner(descriptor: &OwnedFd, uid: u32) {
    let null = rustix::fs::fstat(descriptor).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
            && rustix::fs::major(stat.st_rdev) == 1
    });
    if !null {
        let _ = fchown(descriptor, Some(Uid::from_raw(uid)), None::<Gid>);
    }
}

/// Receives a terminal through a socket.
pub(super) fn receive_terminal(socket: &UnixStream) -> io::Result<OwnedFd> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    protocol::receive(socket, &mut text, &mut fds)?;
    fds.pop().ok_or_else(|| io::Error::other("no terminal received"))
}
