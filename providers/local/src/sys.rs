//! What the kernel offers and no crate wraps.
#![allow(unsafe_code)]

pub mod fd;
pub mod mount;
pub mod process;
