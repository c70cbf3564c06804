//! Virtual Kubelet: a kubelet look-alike that runs pods on any backend.
//!
//! This crate is the `virtual-kubelet` command. Use it as a library to build a command with additional providers:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use virtual_kubelet::Registry;
//!
//! fn main() -> ExitCode {
//!     let registry = Registry::with_builtin(); // .with(MyFactory)
//!     virtual_kubelet::main_with(registry)
//! }
//! ```
//!
//! [`provider`] has the traits that a provider implements.
//!
//! # Features
//!
//! All features except `e2e` are enabled by default.
//!
//! - `cluster`: the provider `cluster`, which runs pods in another Kubernetes cluster, and `virtual-kubelet detach`.
//! - `cri`: the provider `cri`, which runs pods on a container runtime through CRI.
//! - `local`: the provider `local`, which runs containers on this machine without a runtime, and `virtual-kubelet image`.
//! - `mock`: the provider `mock`, which accepts pods and runs nothing.
//! - `dev`: `virtual-kubelet dev`, a control plane on this machine for development.
//! - `e2e`: the long tests of `make e2e`.

pub mod cli;
pub mod config;
#[cfg(feature = "dev")]
pub mod dev;
pub mod registry;
pub mod run;
pub mod telemetry;
mod version;

use std::process::ExitCode;

use clap::Parser;

/// The contract between Virtual Kubelet and a backend, which providers implement.
pub use vk_provider as provider;

pub use self::{
    cli::Cli,
    registry::Registry,
    version::{KUBERNETES_VERSION, kubelet_version},
};

/// Runs the command with the arguments of the process. The exit code is 0 on success, 1 on failure, and 2 if the command line
/// or the configuration is invalid.
pub fn main_with(registry: Registry) -> ExitCode {
    // First, because there is one shim process per container and it must stay small and single-threaded.
    #[cfg(feature = "local")]
    if std::env::args_os().nth(1).is_some_and(|verb| verb == "shim") {
        return vk_provider_local::shim::main();
    }
    #[cfg(feature = "local")]
    vk_provider_local::sys::process::limit_malloc_arenas();
    // One TLS implementation for the process. An error only says that the caller has chosen one already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return cli::report_usage_error(&error),
    };
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => cli::report(runtime.block_on(Box::pin(cli.run(registry)))),
        Err(error) => cli::report(Err(anyhow::Error::new(error).context("cannot start threads").into())),
    }
}
