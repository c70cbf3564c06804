//! What the kernel and the C library offer and no crate wraps.
#![allow(unsafe_code)]

pub mod fd;
pub mod memory;
pub mod mount;
pub mod process;
