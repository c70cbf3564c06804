//! Processes and signals that need `unsafe`.

use std::io;

use nix::{
    libc,
    sys::signal::{SigHandler, SigSet, Signal},
    unistd::{ForkResult, fork},
};

/// Forks: the child runs `child` and exits when that returns; the parent gets its PID.
///
/// Only in a single-threaded process, as the helpers of the shim are.
pub fn fork_to(child: impl FnOnce()) -> nix::Result<i32> {
    // SAFETY: this process has one thread, so no lock can be held by a thread that the child does not have.
    match unsafe { fork() }? {
        ForkResult::Child => {
            child();
            std::process::exit(1)
        }
        ForkResult::Parent { child } => Ok(child.as_raw()),
    }
}

/// Sends a signal by number, including real-time signals, to a single process.
pub fn signal(process: i32, number: i32) -> io::Result<()> {
    if process <= 0 || number <= 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: takes two numbers and touches no memory; the kernel rejects invalid signals.
    match unsafe { libc::kill(process, number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Joins a new, empty session keyring, so that children do not see the keys of the parent process. Failures are
/// ignored: without keyrings there are no keys.
pub fn leave_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: with a null pointer as name, the kernel reads no memory.
    let _ =
        unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// Resets signal handling to the defaults, for this process and the program it executes: nothing is blocked or ignored.
pub fn usual_signals() {
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: only restores the default; nothing relies on another handler.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
    }
    let _ = SigSet::empty().thread_set_mask();
}
