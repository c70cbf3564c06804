//! What `virtual-kubelet shim` is, alone: for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    vk_provider_local::shim::main()
}
