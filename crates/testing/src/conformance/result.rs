//! Results of cases.

use std::fmt;

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseResult {
    /// The provider follows the rule.
    Passed,
    /// The rule is about a feature that the provider lacks, which the text names.
    DoesNotApply(String),
    /// The provider violates the rule.
    Violated(Violation),
}

/// A violation of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What was observed.
    pub seen: String,
    /// What the author of the provider can do.
    pub advice: &'static str,
}

/// The result of a case's function; both ways to end early are errors, for `?`.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Why a case ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    DoesNotApply(String),
    Violated(Violation),
}

// === impl Stop ===

impl Stop {
    pub(crate) fn violated(seen: impl Into<String>, advice: &'static str) -> Self {
        Self::Violated(Violation { seen: seen.into(), advice })
    }
}

/// Ends the case with a violation unless `holds`.
pub(crate) fn ensure(holds: bool, seen: impl FnOnce() -> String, advice: &'static str) -> Outcome {
    if holds { Ok(()) } else { Err(Stop::violated(seen(), advice)) }
}

// === impl CaseResult ===

impl From<Outcome> for CaseResult {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(Stop::DoesNotApply(why)) => Self::DoesNotApply(why),
            Err(Stop::Violated(violation)) => Self::Violated(violation),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  seen: {}\n  do:   {}", self.seen, self.advice)
    }
}
