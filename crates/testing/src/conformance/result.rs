//! How a case ends.

use std::fmt;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseResult {
    /// The provider keeps the rule.
    Passed,
    /// The rule is about something that the provider does not have, and says so. The text says what.
    DoesNotApply(String),
    /// The provider breaks the rule.
    Violated(Violation),
}

/// What a provider did that the contract forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What was seen.
    pub seen: String,
    /// What the author of the provider can do about it.
    pub advice: &'static str,
}

/// What a case answers; both ways to end early travel as errors, so that `?` ends it.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Why a case ended before its last line.
#[derive(Debug)]
pub(crate) enum Stop {
    DoesNotApply(String),
    Violated(Violation),
}

// === impl Stop ===

impl Stop {
    pub(crate) fn broken(seen: impl Into<String>, advice: &'static str) -> Self {
        Self::Violated(Violation { seen: seen.into(), advice })
    }
}

/// The rest of a case goes on only where this holds.
pub(crate) fn ensure(holds: bool, seen: impl FnOnce() -> String, advice: &'static str) -> Outcome {
    if holds { Ok(()) } else { Err(Stop::broken(seen(), advice)) }
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
