//! Pods of real containers, by the backend alone.

mod conformance;
mod ending;
mod life;
mod limits;
mod place;
mod plain;
mod restart;
