//! What goes wrong with the network.

use std::{io, path::PathBuf};

use nix::errno::Errno;

use super::Subnet;

/// Why the network could not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("{doing}: {source}{}", hint(.source))]
    Kernel {
        /// What was tried.
        doing: String,
        /// Its answer.
        source: io::Error,
    },
    /// A file of ours.
    #[error("{doing} {}: {source}", .path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The configured subnet is in use.
    #[error(
        "the subnet {subnet} shares addresses with {other}, which this machine has already: configure another subnet, or none to have one chosen"
    )]
    Taken {
        /// What was configured.
        subnet: Subnet,
        /// With what it clashes.
        other: Subnet,
    },
    /// No subnet is free.
    #[error("no free subnet for pods was found on this machine: configure one that nothing else uses")]
    NoSubnet,
    /// A link of our name that is no bridge.
    #[error("the link {name} exists and is no bridge (but a {kind:?}): remove it")]
    NoBridge {
        /// Its name.
        name: String,
        /// What it is.
        kind: String,
    },
    /// Every address is in use.
    #[error("no free address in {subnet}: {used} pods have one; configure a larger subnet for more pods")]
    Exhausted {
        /// The subnet.
        subnet: Subnet,
        /// How many.
        used: usize,
    },
    /// A port of the host that cannot be had.
    #[error("host port {port}: {why}")]
    HostPort {
        /// Which.
        port: u16,
        /// Why not.
        why: String,
    },
    /// A sandbox's name that is no file name.
    #[error("{0:?} is no id of a sandbox: only letters, digits, '-', '_' and '.' are")]
    Sandbox(String),
    /// A task of ours panicked.
    #[error("{0} panicked")]
    Panicked(&'static str),
}

// === impl Error ===

impl Error {
    pub(crate) fn kernel(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        |source| Self::Kernel { doing, source }
    }
}

/// What to do about an answer of the kernel.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM | Errno::EACCES) => " (needs CAP_NET_ADMIN: run as root)",
        Some(Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT) => {
            " (this kernel lacks it: load or build the module)"
        }
        _ => "",
    }
}
