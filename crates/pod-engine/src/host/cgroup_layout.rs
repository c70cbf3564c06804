//! The cgroup layout of a host.

use super::Host;

/// The controllers that pods need.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

/// The cgroup layout of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupLayout {
    /// No cgroups are mounted.
    None,
    /// Version 2: one hierarchy for all controllers.
    Unified {
        /// Controllers that pods need and that are missing.
        missing: Vec<&'static str>,
    },
    /// Version 1: one hierarchy for each controller.
    Split {
        /// Controllers that pods need and that are missing.
        missing: Vec<&'static str>,
        /// Whether a version 2 hierarchy without controllers is mounted too.
        hybrid: bool,
    },
}

// === impl CgroupLayout ===

impl CgroupLayout {
    /// Detects the layout from `/sys/fs/cgroup`.
    pub fn detect(host: &Host) -> Self {
        if let Ok(unified) = host.read("sys/fs/cgroup/cgroup.controllers") {
            return Self::Unified { missing: missing(unified.split_whitespace()) };
        }
        let Ok(known) = host.read("proc/cgroups") else { return Self::None };
        // Name, hierarchy, number of groups, enabled.
        let enabled = known.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            (words.nth(2)? == "1" && host.path(&format!("sys/fs/cgroup/{name}")).exists()).then_some(name)
        });
        let hybrid = host.path("sys/fs/cgroup/unified").exists();
        Self::Split { missing: missing(enabled), hybrid }
    }

    /// Controllers that pods need and that are missing.
    pub fn missing(&self) -> &[&'static str] {
        match self {
            Self::None => &NEEDED,
            Self::Unified { missing } | Self::Split { missing, .. } => missing,
        }
    }

    /// The directories in which pod cgroups are created.
    pub fn roots(&self, host: &Host) -> Vec<std::path::PathBuf> {
        match self {
            Self::None => Vec::new(),
            Self::Unified { .. } => vec![host.path("sys/fs/cgroup")],
            Self::Split { missing, .. } => NEEDED
                .iter()
                .filter(|name| !missing.contains(name))
                .map(|name| host.path(&format!("sys/fs/cgroup/{name}")))
                .collect(),
        }
    }
}

impl std::fmt::Display for CgroupLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none are mounted",
            Self::Unified { .. } => "version 2",
            Self::Split { hybrid: true, .. } => "versions 1 and 2 side by side",
            Self::Split { hybrid: false, .. } => "version 1",
        })?;
        match self.missing() {
            [] => Ok(()),
            _ if *self == Self::None => Ok(()),
            missing => write!(f, ", without the controllers {}", missing.join(", ")),
        }
    }
}

fn missing<'a>(found: impl Iterator<Item = &'a str>) -> Vec<&'static str> {
    let found: Vec<&str> = found.collect();
    NEEDED.into_iter().filter(|needed| !found.contains(needed)).collect()
}
