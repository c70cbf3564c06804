//! Errors of the pod network.

use std::{io, path::PathBuf};

use rustix::io::Errno;

use super::Subnet;

/// An error of the pod network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink request failed.
    #[error("{doing}: {source}{}", hint(.source))]
    Kernel {
        /// The operation.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("{doing} {}: {source}", .path.display())]
    File {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configured subnet is in use.
    #[error(
        "the subnet {subnet} overlaps {other}, which this host already uses: configure another subnet, or none to have one chosen"
    )]
    SubnetInUse {
        /// The configured subnet.
        subnet: Subnet,
        /// The subnet that it overlaps.
        other: Subnet,
    },
    /// No subnet is free.
    #[error("no free subnet for pods found on this host: configure one that nothing else uses")]
    NoSubnet,
    /// A link with the name of the bridge has another type.
    #[error("the link {name} exists and is not a bridge (but a {kind:?}): remove it")]
    NotABridge {
        /// Its name.
        name: String,
        /// Its type.
        kind: String,
    },
    /// All addresses are in use.
    #[error("no free address in {subnet}: {used} pods have one; configure a larger subnet for more pods")]
    Exhausted {
        /// The subnet.
        subnet: Subnet,
        /// The number of addresses in use.
        used: usize,
    },
    /// A host port cannot be forwarded.
    #[error("host port {port}: {why}")]
    HostPort {
        /// The port.
        port: u16,
        /// The cause.
        why: String,
    },
    /// A sandbox id that is not a valid file name.
    #[error("{0:?} is not a valid sandbox id: use letters, digits, '-', '_' and '.'")]
    InvalidSandboxId(String),
    /// A task panicked.
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

/// A hint for an error of the kernel.
fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => " (needs CAP_NET_ADMIN: run as root)",
        Some(Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT) => {
            " (not supported by this kernel: load or build the module)"
        }
        _ => "",
    }
}
