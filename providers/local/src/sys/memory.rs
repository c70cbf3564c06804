//! The allocator.

/// Keeps the allocator from making a heap for every thread: one for each processor and one more is what those need that are always there.
/// Containers are made on threads that come and go; each would leave a heap behind that nobody else uses. To be called before there are
/// threads. Where the C library is another one, nothing is done.
pub fn few_heaps() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc;
        let heaps = 1 + std::thread::available_parallelism().map_or(1, usize::from);
        let heaps = libc::c_int::try_from(heaps).unwrap_or(libc::c_int::MAX);
        // SAFETY: it sets a number in the allocator, under its own lock. One that does not know it goes on as it was.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
    }
}
