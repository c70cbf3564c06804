//! What a look at a backend's surroundings found: for `virtual-kubelet doctor`.

use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Something will not work, or not well.
    Warning,
    /// Pods will not run.
    Error,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at, in a word or two.
    pub what: String,
    /// What was found.
    pub found: String,
    /// What to do about it; empty where nothing is to be done.
    pub remedy: String,
}

// === impl Finding ===

impl Finding {
    /// As it should be.
    pub fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), found: found.into(), remedy: String::new() }
    }

    /// Something will not work, or not well.
    pub fn warning(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warning, what: what.into(), found: found.into(), remedy: remedy.into() }
    }

    /// Pods will not run.
    pub fn error(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Error, what: what.into(), found: found.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Level {
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
        assert!(Level::Ok < Level::Warning && Level::Warning < Level::Error);
    }
}
