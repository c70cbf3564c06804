//! How the kernel's control groups are laid out on a machine.

use super::Machine;

/// The controllers that pods need.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

/// How control groups are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// There are none.
    None,
    /// Version 2: one tree for all controllers.
    Unified {
        /// Controllers that pods need and that are not there.
        missing: Vec<&'static str>,
    },
    /// Version 1: a tree for each controller.
    Split {
        /// Controllers that pods need and that are not there.
        missing: Vec<&'static str>,
        /// Whether a tree of version 2, without controllers, is beside them.
        hybrid: bool,
    },
}

// === impl Cgroups ===

impl Cgroups {
    /// The layout of a machine, by what is mounted at `/sys/fs/cgroup`.
    pub fn of(machine: &Machine) -> Self {
        if let Ok(unified) = machine.read("sys/fs/cgroup/cgroup.controllers") {
            return Self::Unified { missing: missing(unified.split_whitespace()) };
        }
        let Ok(known) = machine.read("proc/cgroups") else { return Self::None };
        // Name, hierarchy, number of groups, enabled.
        let enabled = known.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            (words.nth(2)? == "1" && machine.path(&format!("sys/fs/cgroup/{name}")).exists()).then_some(name)
        });
        let hybrid = machine.path("sys/fs/cgroup/unified").exists();
        Self::Split { missing: missing(enabled), hybrid }
    }

    /// Controllers that pods need and that are not there.
    pub fn missing(&self) -> &[&'static str] {
        match self {
            Self::None => &NEEDED,
            Self::Unified { missing } | Self::Split { missing, .. } => missing,
        }
    }

    /// The directories in which groups for pods are made.
    pub fn roots(&self, machine: &Machine) -> Vec<std::path::PathBuf> {
        match self {
            Self::None => Vec::new(),
            Self::Unified { .. } => vec![machine.path("sys/fs/cgroup")],
            Self::Split { missing, .. } => NEEDED
                .iter()
                .filter(|name| !missing.contains(name))
                .map(|name| machine.path(&format!("sys/fs/cgroup/{name}")))
                .collect(),
        }
    }
}

impl std::fmt::Display for Cgroups {
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
