//! What every long-running part needs and none should write again: tasks with an owner, an orderly end, a clock that
//! tests can move, and one back-off.

pub mod backoff;
pub mod clock;
pub mod task;

pub use self::{
    backoff::Backoff,
    clock::Clock,
    task::{Failure, Kind, Supervisor},
};
