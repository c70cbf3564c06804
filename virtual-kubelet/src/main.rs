//! The `virtual-kubelet` command, with the providers that are compiled in.

use std::process::ExitCode;

use virtual_kubelet::Registry;

fn main() -> ExitCode {
    virtual_kubelet::main_with(Registry::with_builtin())
}
