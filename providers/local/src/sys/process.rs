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
pub fn fork_child(child: impl FnOnce()) -> nix::Result<i32> {
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
pub fn join_new_session_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: with a null pointer as name, the kernel reads no memory.
    let _ =
        unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// Resets signal handling to the defaults, for this process and the program it executes: nothing is blocked or ignored.
pub fn reset_signals() {
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: only restores the default; nothing relies on another handler.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
    }
    let _ = SigSet::empty().thread_set_mask();
}

/// Limits malloc to one arena per processor plus one. Containers are created on short-lived threads, each of which
/// would otherwise leave an arena behind. Must be called before threads are started. Does nothing with other C
/// libraries than glibc.
pub fn limit_malloc_arenas() {
    #[cfg(target_env = "gnu")]
    {
        let heaps = 1 + std::thread::available_parallelism().map_or(1, usize::from);
        let heaps = libc::c_int::try_from(heaps).unwrap_or(libc::c_int::MAX);
        // SAFETY: this sets a number in the allocator, under its own lock.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
    }
}

/// Moves this thread into new namespaces.
pub fn unshare(namespaces: rustix::thread::UnshareFlags) -> rustix::io::Result<()> {
    let namespaces = namespaces - rustix::thread::UnshareFlags::FILES;
    // SAFETY: the table of file descriptors stays shared.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }
}
