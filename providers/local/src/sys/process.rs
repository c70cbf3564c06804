//! Processes.

use nix::unistd::{ForkResult, fork};

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
