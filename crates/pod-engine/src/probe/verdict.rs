//! What probes have found out, for those who decide and those who tell.

use std::{collections::BTreeMap, fmt};

/// The three kinds of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Whether it must be restarted.
    Liveness,
    /// Whether it can serve.
    Readiness,
    /// Whether it has started.
    Startup,
}

/// What a probe says after its thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing yet.
    Unknown,
    /// It is well.
    Success,
    /// It is not.
    Failure,
}

/// The verdicts on a pod's containers, by the runtime's id: a restarted container begins anew. What no probe has looked at is not in
/// here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts(BTreeMap<(String, Kind), Verdict>);

// === impl Kind ===

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

// === impl Verdicts ===

impl Verdicts {
    /// The verdict on a container, where there is one.
    pub fn get(&self, container: &str, kind: Kind) -> Option<Verdict> {
        self.0.get(&(container.to_owned(), kind)).copied()
    }

    /// Sets a verdict. Tells whether it is another than before.
    pub fn set(&mut self, container: &str, kind: Kind, verdict: Verdict) -> bool {
        self.0.insert((container.to_owned(), kind), verdict) != Some(verdict)
    }

    /// Forgets one verdict on a container.
    pub fn remove(&mut self, container: &str, kind: Kind) {
        self.0.remove(&(container.to_owned(), kind));
    }

    /// All verdicts: container, kind, verdict.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Kind, Verdict)> {
        self.0.iter().map(|((container, kind), verdict)| (container.as_str(), *kind, *verdict))
    }

    /// Forgets a container.
    pub fn forget(&mut self, container: &str) {
        self.0.retain(|(id, _), _| id != container);
    }
}
