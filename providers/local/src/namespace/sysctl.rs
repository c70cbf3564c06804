//! Sysctls that belong to a namespace.

use std::{fs, io, path::PathBuf};

use super::Kind;

/// A sysctl of a namespace that the sandbox has.
pub(super) struct Sysctl<'a> {
    name: &'a str,
    value: &'a str,
    kind: Kind,
}

// === impl Sysctl ===

impl<'a> Sysctl<'a> {
    /// Rejects sysctls of the host.
    pub(super) fn new(name: &'a str, value: &'a str, own: impl Fn(Kind) -> bool) -> io::Result<Self> {
        let refuse =
            |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("sysctl {name:?} {why}")));
        if name.split('.').any(|part| part.is_empty() || part.contains(['/', '\0'])) {
            return refuse("is not a valid name: write it with dots, such as net.ipv4.ip_forward");
        }
        let Some(kind) = kind(name) else {
            return refuse("is not in a separate kernel namespace");
        };
        if !own(kind) {
            return match kind {
                Kind::Net => refuse("not allowed in host network namespace"),
                _ => refuse("is not allowed in the hosts ipc namespace"),
            };
        }
        Ok(Self { name, value, kind })
    }

    /// The namespace that it belongs to.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Sets it in the namespaces of this thread.
    pub(super) fn write(&self) -> io::Result<()> {
        let path = PathBuf::from("/proc/sys").join(self.name.replace('.', "/"));
        // `fs::write` would try to create the file if the kernel lacks this sysctl.
        let written = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| io::Write::write_all(&mut file, self.value.as_bytes()));
        written.map_err(|error| {
            let text = format!("set sysctl {} to {:?}: {}: {error}", self.name, self.value, path.display());
            io::Error::new(error.kind(), text)
        })
    }
}

/// The namespace that a sysctl belongs to, from runc's list.
fn kind(name: &str) -> Option<Kind> {
    const IPC: [&str; 11] = [
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.msg_next_id",
        "kernel.sem_next_id",
        "kernel.shm_next_id",
    ];
    if name.starts_with("net.") {
        Some(Kind::Net)
    } else if IPC.contains(&name) || name.starts_with("fs.mqueue.") {
        Some(Kind::Ipc)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, own: bool) -> String {
        Sysctl::new(name, "1", |_| own).err().unwrap().to_string()
    }

    #[test]
    fn sysctls_of_the_host_are_rejected() {
        assert_eq!(
            error("kernel.panic", true),
            "sysctl \"kernel.panic\" is not in a separate kernel namespace"
        );
        assert_eq!(
            error("vm.swappiness", true),
            "sysctl \"vm.swappiness\" is not in a separate kernel namespace"
        );
        assert_eq!(
            error("net.core.somaxconn", false),
            "sysctl \"net.core.somaxconn\" not allowed in host network namespace"
        );
        assert_eq!(
            error("kernel.shmmax", false),
            "sysctl \"kernel.shmmax\" is not allowed in the hosts ipc namespace"
        );
    }

    #[test]
    fn a_name_cannot_leave_proc_sys() {
        for name in ["net...etc.passwd", "net.ipv4/../../../etc", "net.", ".net", "", "net.\0"] {
            assert!(Sysctl::new(name, "1", |_| true).is_err(), "{name:?}");
        }
    }

    #[test]
    fn sysctls_belong_to_the_network_or_ipc_namespace() {
        let kind = |name: &str| Sysctl::new(name, "1", |_| true).unwrap().kind();
        assert_eq!(kind("net.ipv4.ip_local_port_range"), Kind::Net);
        for name in ["kernel.shm_rmid_forced", "kernel.sem", "kernel.msgmax", "fs.mqueue.msg_max"] {
            assert_eq!(kind(name), Kind::Ipc, "{name}");
        }
    }
}
