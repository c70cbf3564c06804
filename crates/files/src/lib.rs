//! The files of volumes, for providers that have a file system.
//!
//! * [`Root`] finds, reads and makes things below a directory that a container may write to, and never leaves it: what a
//!   `subPath` needs, because a container can put a symbolic link in the way at any moment.

pub mod error;
pub mod root;

pub use self::{
    error::{Error, Result},
    root::Root,
};
