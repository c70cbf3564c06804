//! What the kernel offers and no crate wraps.
