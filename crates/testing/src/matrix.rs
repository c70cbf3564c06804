//! The kubectl matrix: every verb of kubectl that reaches into a pod, through the real API server, on any node.
//!
//! It knows a kubeconfig and the name of a node, and nothing of who runs the node: every provider with the abilities runs it by
//! name. Containers need `sh`, `echo`, `cat`, `head`, `tar`, `test`, `tty` and `stty`, as busybox has them.
//!
//! ```no_run
//! # async fn example(subject: vk_testing::matrix::Subject) {
//! use vk_testing::matrix::{self, Stage};
//!
//! let stage = Stage::open(subject).await;
//! matrix::exec::exit_codes(&stage).await;
//! # }
//! ```

pub mod attach;
pub mod copy;
pub mod debug;
pub mod exec;
pub mod forward;
pub mod logs;
mod stage;

pub use self::stage::{Stage, Subject};
