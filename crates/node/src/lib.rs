//! The controllers of a virtual node.
//!
//! Each is a synchronous state machine (event in, actions out) that a thin asynchronous shell drives; clock and
//! randomness are parameters, so that thousands of fault schedules run in a second.

pub mod node;
pub mod now;
pub mod pods;
pub mod resolve;
