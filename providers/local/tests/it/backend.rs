//! Tests of the backend with real containers.

mod conformance;
mod lifecycle;
mod limits;
mod pod_limits;
mod process;
mod restart;
mod secrets;
mod termination;
mod test_backend;
