//! The allocator.

/// Keeps the allocator from making a heap for every thread. Containers are made on threads that come and go; each would leave a heap behind that
/// nobody else uses. To be called before there are threads. Where the C library is another one, nothing is done.
pub fn few_heaps() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc;
        // SAFETY: it sets a number in the allocator, under its own lock. One that does not know it goes on as it was.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
    }
}
