//! Building blocks of long-running components: supervised tasks with an orderly shutdown, a clock that tests control, and
//! exponential back-off.

pub mod backoff;
pub mod clock;
pub mod task;

pub use self::{
    backoff::Backoff,
    clock::{Clock, Now},
    task::{Failure, Kind, Supervisor},
};
