//! Input and output of a program that is about to run: three descriptors, or a terminal of its own.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
};

use nix::unistd::setsid;
use rustix::{
    fs::{Gid, Uid, fchown},
    process::ioctl_tiocsctty,
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};

use super::wire::{self, Order};
use crate::sys;

/// What an order gives to the program.
#[derive(Debug)]
pub(super) enum Console {
    /// Input, output, error output.
    Pipes([OwnedFd; 3]),
    /// A socket that takes the terminal.
    Terminal(UnixStream),
}

impl Console {
    /// Takes the inherited descriptors; once.
    pub(super) fn taken(order: &Order) -> io::Result<Self> {
        let take = |number: Option<i32>, what: &str| {
            let number = number.ok_or_else(|| io::Error::other(format!("an order without {what}")))?;
            sys::fd::inherited(number)
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

    /// Gives the pipes to a user: a program that opens `/dev/stdout` anew needs the right to.
    pub(super) fn give_to(&self, uid: u32) {
        if let Self::Pipes(pipes) = self {
            for pipe in pipes {
                own(pipe, uid);
            }
        }
    }

    /// Begins a session of its own and makes these the input and output of this process. The terminal is one of the file system that
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
                // By the master and not by its name: whoever made the file system has no say in which device it is.
                let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
                let terminal = ioctl_tiocgptpeer(&master, flags)?;
                if let Some(uid) = uid {
                    own(&terminal, uid);
                }
                wire::send(&socket, b"t", &[master.as_fd()])?;
                ioctl_tiocsctty(&terminal)?;
                dup2_stdin(&terminal)?;
                dup2_stdout(&terminal)?;
                dup2_stderr(&terminal)?;
            }
        }
        Ok(())
    }
}

/// `/dev/null` belongs to everybody, and what we may not change stays as it is.
fn own(descriptor: &OwnedFd, uid: u32) {
    let null = rustix::fs::fstat(descriptor).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
            && rustix::fs::major(stat.st_rdev) == 1
    });
    if !null {
        let _ = fchown(descriptor, Some(Uid::from_raw(uid)), None::<Gid>);
    }
}

/// The terminal that was sent through a socket.
pub(super) fn received(socket: &UnixStream) -> io::Result<OwnedFd> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    wire::receive(socket, &mut text, &mut fds)?;
    fds.pop().ok_or_else(|| io::Error::other("no terminal was sent"))
}
