//! How well containers are kept apart from each other and from the machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How well containers are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// Plain processes of this user, with the machine's files and network.
    Process,
    /// Containers: files, processes, network and limits of their own. Linux, as root.
    Oci,
}

// === impl Level ===

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Oci => "oci",
        })
    }
}
