//! How a case ends.

use std::fmt;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The provider keeps the rule.
    Passed,
    /// The rule is about something that the provider does not have, and says so. The text says what.
    DoesNotApply(String),
    /// The provider breaks the rule.
    Broken(Breach),
}

/// What a provider did that the contract forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
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
    Broken(Breach),
}

// === impl Stop ===

impl Stop {
    pub(crate) fn broken(seen: impl Into<String>, advice: &'static str) -> Self {
        Self::Broken(Breach { seen: seen.into(), advice })
    }
}

/// The rest of a case goes on only where this holds.
pub(crate) fn ensure(holds: bool, seen: impl FnOnce() -> String, advice: &'static str) -> Outcome {
    if holds { Ok(()) } else { Err(Stop::broken(seen(), advice)) }
}

// === impl Verdict ===

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(Stop::DoesNotApply(why)) => Self::DoesNotApply(why),
            Err(Stop::Broken(breach)) => Self::Broken(breach),
        }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  seen: {}\n  do:   {}", self.seen, self.advice)
    }
}
