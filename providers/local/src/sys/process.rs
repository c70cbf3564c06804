//! Processes.

use nix::{
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

/// Makes signals do to this process, and to what it becomes, what they do to any program: none is blocked and none is ignored, whatever
/// whoever started us had set.
pub fn usual_signals() {
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: no handler is installed, only the default put back, and nothing here relies on another one.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
    }
    let _ = SigSet::empty().thread_set_mask();
}
