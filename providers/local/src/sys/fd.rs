//! Descriptors that came from another program.

use std::{
    io,
    os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::libc;
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::io::unix::AsyncFd;

/// A descriptor that this process was started with. From now on it ends with this program: what is started next does not get it.
///
/// Only for a number that whoever started us put there for this purpose, and once.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::other(format!("descriptor {number} is not ours to take")));
    }
    // SAFETY: the number is only borrowed for a call that fails where nothing is open under it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, as the call above showed, and nothing else in this process owns it: it was opened by the program that started
    // us, which passed its number for this.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes everything but input, output and error output: at the start of a program that lives longer than the one that started it.
/// Must be called before this program opens anything.
pub fn close_all() -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor yet, so none is closed under its owner.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor that the runtime tells about when it is ready.
pub fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor has one number for as long as it lives, and stays open for as long: it is closed when the whole is
    // dropped, which ends the registration first.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}
