//! How pods are isolated from each other and from the host, and what the host must provide for it.

mod overlay;

use std::{fmt, path::Path};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use vk_pod_engine::host::{CgroupLayout, Host};

pub use self::overlay::{OverlayTest, test_overlay};

/// The isolation of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    /// Plain processes of this user, with the host's files and network.
    Process,
    /// Containers with their own files, processes, network and limits. Linux only, as root.
    Oci,
}

/// A requirement of [`Oci`](Isolation::Oci).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Its name, in a word or two.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// How to meet it; `None` if it is met.
    pub remedy: Option<String>,
}

/// How a host meets the requirements of [`Oci`](Isolation::Oci).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationSupport {
    /// All requirements that were checked.
    pub requirements: Vec<Requirement>,
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

// === impl Isolation ===

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Oci => "oci",
        })
    }
}

// === impl Requirement ===

impl Requirement {
    fn met(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), remedy: None }
    }

    fn unmet(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, found: found.into(), remedy: Some(remedy.into()) }
    }
}

// === impl IsolationSupport ===

impl IsolationSupport {
    /// Checks the host. `overlay` tests whether an overlay can be mounted, if the process has the rights to try.
    pub fn check(host: &Host, overlay: &OverlayTest<'_>, storage: &Path) -> Self {
        let mut requirements = vec![root(host)];
        let is_root = requirements.iter().all(|requirement| requirement.remedy.is_none());
        if is_root {
            requirements.push(capabilities(host));
        }
        requirements.push(namespaces(host));
        requirements.push(cgroups(host, is_root));
        requirements.push(overlay::requirement(host, is_root, overlay, storage));
        Self { requirements }
    }

    /// The best isolation that the host allows.
    pub fn best(&self) -> Isolation {
        if self.unmet().next().is_none() { Isolation::Oci } else { Isolation::Process }
    }

    /// The requirements that are not met.
    pub fn unmet(&self) -> impl Iterator<Item = &Requirement> {
        self.requirements.iter().filter(|requirement| requirement.remedy.is_some())
    }

    /// The requirements that are not met, with remedies, in one line.
    pub fn reasons(&self) -> String {
        let reasons: Vec<String> = self
            .unmet()
            .map(|requirement| {
                format!(
                    "{}: {} -> {}",
                    requirement.what,
                    requirement.found,
                    requirement.remedy.as_deref().unwrap_or_default()
                )
            })
            .collect();
        reasons.join("; ")
    }
}

fn root(host: &Host) -> Requirement {
    let what = "user";
    let status = host.read("proc/self/status").unwrap_or_default();
    // Real, effective, saved and filesystem UID.
    let effective = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    match effective {
        Some("0") => Requirement::met(what, "root"),
        Some(uid) => Requirement::unmet(
            what,
            format!("this process runs as user {uid}"),
            "run virtual-kubelet as root",
        ),
        None => Requirement::unmet(what, "/proc/self/status cannot be read", "mount /proc"),
    }
}

fn capabilities(host: &Host) -> Requirement {
    let what = "capabilities";
    let lacking: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(number, _)| host.has_capability(*number) != Some(true))
        .map(|(_, name)| *name)
        .collect();
    if lacking.is_empty() {
        return Requirement::met(what, "complete");
    }
    Requirement::unmet(
        what,
        format!("this process lacks {}", lacking.join(", ")),
        "add them (if this process runs in a container: run it privileged)",
    )
}

fn namespaces(host: &Host) -> Requirement {
    let what = "namespaces";
    let lacking: Vec<&str> = NAMESPACES
        .into_iter()
        .filter(|kind| host.path(&format!("proc/self/ns/{kind}")).symlink_metadata().is_err())
        .collect();
    if lacking.is_empty() {
        return Requirement::met(what, "complete");
    }
    Requirement::unmet(
        what,
        format!("not supported by the kernel: {}", lacking.join(", ")),
        "boot a kernel that supports them",
    )
}

fn cgroups(host: &Host, is_root: bool) -> Requirement {
    let what = "cgroups";
    let cgroups = CgroupLayout::detect(host);
    let remedy = match &cgroups {
        CgroupLayout::None => Some("mount them at /sys/fs/cgroup"),
        _ if cgroups.missing().is_empty() => None,
        CgroupLayout::Unified { .. } => {
            Some("delegate them to this host, or boot the kernel with them (cgroup_enable=memory)")
        }
        CgroupLayout::Split { .. } => Some("mount them below /sys/fs/cgroup"),
    };
    if let Some(remedy) = remedy {
        return Requirement::unmet(what, cgroups.to_string(), remedy);
    }
    // For other users than root they are read-only anyway, which the need "user" already reports.
    let locked = cgroups.roots(host).into_iter().find(|path| access(path, Access::WRITE_OK).is_err());
    match locked {
        Some(path) if is_root => Requirement::unmet(
            what,
            format!("{cgroups}, and {} is read-only", path.display()),
            "mount them writable (where this runs in a container: a privileged one, with its own cgroup namespace)",
        ),
        _ => Requirement::met(what, cgroups.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
