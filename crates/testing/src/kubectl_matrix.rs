//! The kubectl matrix: every kubectl command that reaches into a pod, through the real API server, on any node.
//!
//! It needs a kubeconfig and the name of a node, and does not depend on the provider. Containers need `sh`, `echo`, `cat`, `head`, `tar`, `test`,
//! `tty` and `stty`, as busybox has them.
//!
//! ```no_run
//! # async fn example(target: vk_testing::kubectl_matrix::Target) {
//! use vk_testing::kubectl_matrix::{self, KubectlSession};
//!
//! let session = KubectlSession::open(target).await;
//! kubectl_matrix::exec::exit_codes(&session).await;
//! # }
//! ```

pub mod attach;
pub mod copy;
pub mod debug;
pub mod exec;
pub mod forward;
pub mod logs;
mod session;

pub use self::session::{KubectlSession, Target};
