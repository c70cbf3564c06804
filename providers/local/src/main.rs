//! The shim alone, as `virtual-kubelet shim`, for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    vk_provider_local::shim::main()
}
