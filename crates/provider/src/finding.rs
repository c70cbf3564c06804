//! Results of the checks of `virtual-kubelet doctor`.

use std::fmt;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingLevel {
    /// Nothing is wrong.
    Ok,
    /// A feature will not work, or not well.
    Warning,
    /// Pods will not run.
    Error,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub level: FindingLevel,
    /// The subject of the check, in a word or two.
    pub what: String,
    /// What the check found.
    pub found: String,
    /// How to fix it; empty if nothing is wrong.
    pub remedy: String,
}

// === impl Finding ===

impl Finding {
    /// A check that passed.
    pub fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { level: FindingLevel::Ok, what: what.into(), found: found.into(), remedy: String::new() }
    }

    /// A problem that pods can run with.
    pub fn warning(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: FindingLevel::Warning, what: what.into(), found: found.into(), remedy: remedy.into() }
    }

    /// A problem that keeps pods from running.
    pub fn error(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: FindingLevel::Error, what: what.into(), found: found.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for FindingLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7}  {}: {}", self.level, self.what, self.found)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, " -> {}", self.remedy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_its_remedy_at_the_end() {
        assert_eq!(Finding::ok("network", "ready").to_string(), "ok       network: ready");
        assert_eq!(
            Finding::error("network", "no plugin", "install one").to_string(),
            "error    network: no plugin -> install one"
        );
        assert!(FindingLevel::Ok < FindingLevel::Warning && FindingLevel::Warning < FindingLevel::Error);
    }
}
