//! The allocator.

/// Limits malloc to one arena per processor plus one. Containers are created on short-lived threads, each of which
/// would otherwise leave an arena behind. Must be called before threads are started. Does nothing with other C
/// libraries than glibc.
pub fn few_heaps() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc;
        let heaps = 1 + std::thread::available_parallelism().map_or(1, usize::from);
        let heaps = libc::c_int::try_from(heaps).unwrap_or(libc::c_int::MAX);
        // SAFETY: this sets a number in the allocator, under its own lock.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
    }
}
