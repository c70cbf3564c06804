//! System calls that need `unsafe`.
#![allow(unsafe_code)]

pub mod fd;
pub mod process;
