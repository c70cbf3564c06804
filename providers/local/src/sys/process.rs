//! Processes.

use std::io;

use nix::{
    libc,
    sys::signal::{SigHandler, SigSet, Signal},
    unistd::{ForkResult, fork},
};

/// Goes on in two processes: the child does `child`, and ends where that returns; the parent learns its number.
///
/// Only in a process with one thread; the helpers of the shim have no other.
pub fn fork_to(child: impl FnOnce()) -> nix::Result<i32> {
    // SAFETY: this process has one thread, so that no lock can be held by a thread that the child does not have.
    match unsafe { fork() }? {
        ForkResult::Child => {
            child();
            std::process::exit(1)
        }
        ForkResult::Parent { child } => Ok(child.as_raw()),
    }
}

/// Sends a signal by its number, also one of those that have no name. Only to one process.
pub fn signal(process: i32, number: i32) -> io::Result<()> {
    if process <= 0 || number <= 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: takes two numbers and touches no memory of ours; the kernel refuses a number that is no signal.
    match unsafe { libc::kill(process, number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Leaves the session keyring that this process was started with, for a new one without keys: what is started here shall not find those of
/// whoever started us. A kernel without keys, or a filter that forbids them, has none to find.
pub fn leave_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: without a name, which is what the null pointer says, the kernel reads no memory of ours.
    let _ =
        unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// Makes signals do to this process, and to what it becomes, what they do to any program: none is blocked and none is ignored, whatever
/// whoever started us had set.
pub fn usual_signals() {
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: no handler is installed, only the default put back, and nothing here relies on another one.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
    }
    let _ = SigSet::empty().thread_set_mask();
}
