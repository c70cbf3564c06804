//! The processes beside ours.

use std::process::ExitCode;

/// What a process of our binary does that was started as a shim.
pub fn main() -> ExitCode {
    ExitCode::FAILURE
}
