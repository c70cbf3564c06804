//! How well containers are kept apart from each other and from the machine, and what the machine must have for it.

mod overlay;

use std::{fmt, path::Path};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use vk_pod_engine::host::{CgroupLayout, Host};

pub use self::overlay::{Trial, try_overlay};

/// How well containers are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// Plain processes of this user, with the machine's files and network.
    Process,
    /// Containers: files, processes, network and limits of their own. Linux, as root.
    Oci,
}

/// Something that the level [`Oci`](Level::Oci) needs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// What it is, in a word or two.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// What to do where it is not met; `None` where it is.
    pub remedy: Option<String>,
}

/// What a machine has of what the level [`Oci`](Level::Oci) needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// All that was looked at.
    pub needs: Vec<Need>,
}

/// The right to make bridges, and to give addresses to pods.
pub(crate) const CAP_NET_ADMIN: u32 = 12;

/// What the runtime and the unpacking of images do that only a privileged process may.
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
    /// Looks at the machine. Whether files can be laid over others is tried with `overlay`, where it can be tried at all.
    pub fn on(machine: &Host, overlay: &Trial<'_>, storage: &Path) -> Self {
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

    /// The best level that the machine allows.
    pub fn level(&self) -> Level {
        if self.obstacles().next().is_none() { Level::Oci } else { Level::Process }
    }

    /// What stands in the way of a higher level.
    pub fn obstacles(&self) -> impl Iterator<Item = &Need> {
        self.needs.iter().filter(|need| need.remedy.is_some())
    }

    /// Why there is no higher level, in one line with what to do.
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

fn root(machine: &Host) -> Need {
    let what = "user";
    let status = machine.read("proc/self/status").unwrap_or_default();
    // Real, effective, saved, and for files.
    let effective = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    match effective {
        Some("0") => Need::met(what, "root"),
        Some(uid) => {
            Need::unmet(what, format!("this process runs as user {uid}"), "run virtual-kubelet as root")
        }
        None => Need::unmet(what, "/proc/self/status cannot be read", "mount /proc"),
    }
}

fn capabilities(machine: &Host) -> Need {
    let what = "capabilities";
    let lacking: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(number, _)| machine.has_capability(*number) != Some(true))
        .map(|(_, name)| *name)
        .collect();
    if lacking.is_empty() {
        return Need::met(what, "all that containers need");
    }
    Need::unmet(
        what,
        format!("this process lacks {}", lacking.join(", ")),
        "give them to it (where it runs in a container itself: a privileged one)",
    )
}

fn namespaces(machine: &Host) -> Need {
    let what = "namespaces";
    let lacking: Vec<&str> = NAMESPACES
        .into_iter()
        .filter(|kind| machine.path(&format!("proc/self/ns/{kind}")).symlink_metadata().is_err())
        .collect();
    if lacking.is_empty() {
        return Need::met(what, "all that containers need");
    }
    Need::unmet(
        what,
        format!("the kernel has none for {}", lacking.join(", ")),
        "boot a kernel that has them",
    )
}

fn cgroups(machine: &Host, is_root: bool) -> Need {
    let what = "cgroups";
    let cgroups = CgroupLayout::detect(machine);
    let remedy = match &cgroups {
        CgroupLayout::None => Some("mount them at /sys/fs/cgroup"),
        _ if cgroups.missing().is_empty() => None,
        CgroupLayout::Unified { .. } => {
            Some("delegate them to this machine, or boot the kernel with them (cgroup_enable=memory)")
        }
        CgroupLayout::Split { .. } => Some("mount them below /sys/fs/cgroup"),
    };
    if let Some(remedy) = remedy {
        return Need::unmet(what, cgroups.to_string(), remedy);
    }
    // To anybody but root they are read-only, which need not be said twice.
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
