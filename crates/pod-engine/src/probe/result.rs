//! Results of probes.

use std::{collections::BTreeMap, fmt};

/// The three kinds of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Whether the container must be restarted.
    Liveness,
    /// Whether the container is ready.
    Readiness,
    /// Whether the container has started.
    Startup,
}

/// The result of a probe, after its thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// No result yet.
    Unknown,
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
}

/// The results of a pod's probes, by the runtime's container id: a restarted container has none. Containers without probes are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults(BTreeMap<(String, ProbeKind), ProbeResult>);

// === impl ProbeKind ===

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

// === impl ProbeResults ===

impl ProbeResults {
    /// The result of a probe of a container.
    pub fn get(&self, container: &str, kind: ProbeKind) -> Option<ProbeResult> {
        self.0.get(&(container.to_owned(), kind)).copied()
    }

    /// Sets a result. Returns whether it changed.
    pub fn set(&mut self, container: &str, kind: ProbeKind, result: ProbeResult) -> bool {
        self.0.insert((container.to_owned(), kind), result) != Some(result)
    }

    /// Removes a result.
    pub fn remove(&mut self, container: &str, kind: ProbeKind) {
        self.0.remove(&(container.to_owned(), kind));
    }

    /// The number of results.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
