//! System calls that need `unsafe`.
#![allow(unsafe_code)]

pub mod fd;
pub mod memory;
pub mod mount;
pub mod process;
