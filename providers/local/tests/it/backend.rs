//! Pods of real containers, by the backend alone.

mod conformance;
mod life;
mod limits;
mod place;
mod plain;
mod restart;
