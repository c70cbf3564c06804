//! The provider against real API servers, and against one that is none: what goes over the wire, and what is made of it.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod abandon;
mod admission;
mod api;
mod detach;
mod events;
mod exec;
mod forward;
mod live;
mod logs;
mod reflect;
mod refusal;
mod rights;
mod stats;
mod storage;
