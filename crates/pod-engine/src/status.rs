//! The status of a pod as a kubelet would write it. Pure.

use std::collections::BTreeMap;

/// Why containers wait, by their names: what failed when each was last to be started. Gone with the next start that succeeds.
pub type Troubles = BTreeMap<String, Trouble>;

/// Why a container waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kubelet's word: `ErrImagePull`, `CrashLoopBackOff`, `RunContainerError`, ...
    pub reason: String,
    /// A sentence.
    pub message: String,
}
