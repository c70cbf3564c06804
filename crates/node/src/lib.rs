//! The controllers of a virtual node.
//!
//! Each controller is a synchronous state machine (events in, actions out) driven by a thin asynchronous shell. Clock and
//! randomness are parameters, so tests can run thousands of fault schedules per second.

pub mod node;
pub mod pods;
pub mod resolve;
