//! Virtual Kubelet: the kubelet look-alike with any backend behind it.
//!
//! This crate is the `virtual-kubelet` command, and the way to a command of your own with more providers in it:
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
//! What a provider author implements is in [`provider`].
//!
//! # Features
//!
//! One per provider, named as the provider: `cri`, `local`, `mock` (on by default); and `dev` (on by default) for `virtual-kubelet dev`.

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

/// The contract between Virtual Kubelet and a backend: what a provider implements.
pub use vk_provider as provider;

pub use self::{
    cli::Cli,
    registry::Registry,
    version::{KUBERNETES_VERSION, kubelet_version},
};

/// The whole command: reads the arguments of the process, does what they ask, and says how it ended: 0 when all went well,
/// 1 when something failed, 2 when the command line or the configuration is wrong.
pub fn main_with(registry: Registry) -> ExitCode {
    // Before anything else: there is one such process per container, and it shall stay small and alone.
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
        Err(error) => return cli::misuse(&error),
    };
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => cli::report(runtime.block_on(Box::pin(cli.run(registry)))),
        Err(error) => cli::report(Err(anyhow::Error::new(error).context("cannot start threads").into())),
    }
}
