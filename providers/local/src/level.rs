//! How pods are isolated from each other and from the host, and what the host must provide for it.

mod overlay;

use std::{fmt, path::Path};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use vk_pod_engine::machine::{Cgroups, Machine};

pub use self::overlay::{Trial, try_overlay};

/// The isolation of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// Plain processes of this user, with the host's files and network.
    Process,
    /// Containers with their own files, processes, network and limits. Linux only, as root.
    Oci,
}

/// A requirement of [`Oci`](Level::Oci).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its name, in a word or two.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// How to meet it; `None` if it is met.
    pub remedy: Option<String>,
}

/// How a host meets the requirements of [`Oci`](Level::Oci).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// All requirements that were checked.
    pub needs: Vec<Need>,
}

/// The capability to create bridges and to assign addresses to pods.
pub(crate) const CAP_NET_ADMIN: u32 = 12;

/// Capabilities that the runtime and the unpacking of images need.
const CAPABILITIES: [(u32, &str); 11] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (8, "CAP_SETPCAP"),
    (18, "CAP_SYS_CHROOT"),
    (21, "CAP_SYS_ADMIN"),
    (27, "CAP_MKNOD"),
    (31, "CAP_SETFCAP"),
];

const NAMESPACES: [&str; 6] = ["cgroup", "ipc", "mnt", "net", "pid", "uts"];

// === impl Level ===

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Oci => "oci",
        })
    }
}

// === impl Need ===

impl Need {
    fn met(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), remedy: None }
    }

    fn unmet(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, found: found.into(), remedy: Some(remedy.into()) }
    }
}

// === impl Allowed ===

impl Allowed {
    /// Checks the host. `overlay` tests whether an overlay can be mounted, if the process has the rights to try.
    pub fn on(machine: &Machine, overlay: &Trial<'_>, storage: &Path) -> Self {
        let mut needs = vec![root(machine)];
        let is_root = needs.iter().all(|need| need.remedy.is_none());
        if is_root {
            needs.push(capabilities(machine));
        }
        needs.push(namespaces(machine));
        needs.push(cgroups(machine, is_root));
        needs.push(overlay::need(machine, is_root, overlay, storage));
        Self { needs }
    }

    /// The best isolation that the host allows.
    pub fn level(&self) -> Level {
        if self.obstacles().next().is_none() { Level::Oci } else { Level::Process }
    }

    /// The requirements that are not met.
    pub fn obstacles(&self) -> impl Iterator<Item = &Need> {
        self.needs.iter().filter(|need| need.remedy.is_some())
    }

    /// The requirements that are not met, with remedies, in one line.
    pub fn why(&self) -> String {
        let told: Vec<String> = self
            .obstacles()
            .map(|need| {
                format!("{}: {} -> {}", need.what, need.found, need.remedy.as_deref().unwrap_or_default())
            })
            .collect();
        told.join("; ")
    }
}

fn root(machine: &Machine) -> Need {
    let what = "user";
    let status = machine.read("proc/self/status").unwrap_or_default();
    // Real, effective, saved and filesystem UID.
    let effective = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    match effective {
        Some("0") => Need::met(what, "root"),
        Some(uid) => {
            Need::unmet(what, format!("this process runs as user {uid}"), "run virtual-kubelet as root")
        }
        None => Need::unmet(what, "/proc/self/status cannot be read", "mount /proc"),
    }
}

fn capabilities(machine: &Machine) -> Need {
    let what = "capabilities";
    let lacking: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(number, _)| machine.capable(*number) != Some(true))
        .map(|(_, name)| *name)
        .collect();
    if lacking.is_empty() {
        return Need::met(what, "complete");
    }
    Need::unmet(
        what,
        format!("this process lacks {}", lacking.join(", ")),
        "add them (if this process runs in a container: run it privileged)",
    )
}

fn namespaces(machine: &Machine) -> Need {
    let what = "namespaces";
    let lacking: Vec<&str> = NAMESPACES
        .into_iter()
        .filter(|kind| machine.path(&format!("proc/self/ns/{kind}")).symlink_metadata().is_err())
        .collect();
    if lacking.is_empty() {
        return Need::met(what, "complete");
    }
    Need::unmet(
        what,
        format!("not supported by the kernel: {}", lacking.join(", ")),
        "boot a kernel that supports them",
    )
}

fn cgroups(machine: &Machine, is_root: bool) -> Need {
    let what = "cgroups";
    let cgroups = Cgroups::of(machine);
    let remedy = match &cgroups {
        Cgroups::None => Some("mount them at /sys/fs/cgroup"),
        _ if cgroups.missing().is_empty() => None,
        Cgroups::Unified { .. } => {
            Some("delegate them to this machine, or boot the kernel with them (cgroup_enable=memory)")
        }
        Cgroups::Split { .. } => Some("mount them below /sys/fs/cgroup"),
    };
    if let Some(remedy) = remedy {
        return Need::unmet(what, cgroups.to_string(), remedy);
    }
    // For other users than root they are read-only anyway, which the need "user" already reports.
    let locked = cgroups.roots(machine).into_iter().find(|path| access(path, Access::WRITE_OK).is_err());
    match locked {
        Some(path) if is_root => Need::unmet(
            what,
            format!("{cgroups}, and {} is read-only", path.display()),
            "mount them writable (where this runs in a container: a privileged one, with its own cgroup namespace)",
        ),
        _ => Need::met(what, cgroups.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
