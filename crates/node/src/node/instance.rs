//! Which process runs a node: written on the node's lease, so that a second one notices.

use std::{fmt, fs, process, str::FromStr};

/// One process. Its text is `HOST/BOOT/PIDNS/PID/START`, where the system tells these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    host: String,
    /// The boot of the machine and the PID namespace: only inside of one such pair do PIDs mean anything.
    scope: Option<(String, String)>,
    pid: u32,
    /// When the process started, in the kernel's ticks: tells a reused PID from the same process.
    start: Option<u64>,
}

impl Instance {
    /// This process.
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let namespace =
            fs::read_link("/proc/self/ns/pid").ok().map(|link| link.to_string_lossy().into_owned());
        let host = read("/proc/sys/kernel/hostname").filter(|host| !host.is_empty());
        Self {
            host: host.unwrap_or_else(|| "unknown".to_owned()).replace('/', "_"),
            scope: read("/proc/sys/kernel/random/boot_id").zip(namespace),
            pid: process::id(),
            start: start_of(process::id()),
        }
    }

    /// Whether it is certain that the other process is no more: it ran where we can see processes, and is not there.
    pub fn sees_dead(&self, other: &Self) -> bool {
        self.scope.is_some()
            && self.scope == other.scope
            && self.host == other.host
            && other.start.is_some()
            && start_of(other.pid) != other.start
    }

    /// For messages.
    pub fn describe(&self) -> String {
        format!("process {} on host {}", self.pid, self.host)
    }
}

/// The start time of a process in ticks after boot: field 22 of its stat file, counted behind the name in parentheses,
/// which may hold anything. A dead process that nobody has waited for counts as gone.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (boot, namespace) = self.scope.clone().unwrap_or_default();
        write!(f, "{}/{boot}/{namespace}/{}/{}", self.host, self.pid, self.start.unwrap_or(0))
    }
}

impl FromStr for Instance {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('/').collect();
        let [host, boot, namespace, pid, start] = parts.as_slice() else { return Err(()) };
        let scope = (!boot.is_empty()).then(|| ((*boot).to_owned(), (*namespace).to_owned()));
        let start = start.parse::<u64>().map_err(drop)?;
        Ok(Self {
            host: (*host).to_owned(),
            scope,
            pid: pid.parse().map_err(drop)?,
            start: (start != 0).then_some(start),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_survives_being_written_down() {
        let this = Instance::this();
        assert_eq!(this.to_string().parse(), Ok(this.clone()));
        assert!("whatever".parse::<Instance>().is_err());
        assert!(!this.sees_dead(&this));
    }

    #[test]
    fn a_process_that_ended_here_is_seen_as_dead_and_one_elsewhere_is_not() {
        let this = Instance::this();
        let mut child = process::Command::new("cat").stdin(process::Stdio::piped()).spawn().unwrap();
        let other = Instance { pid: child.id(), start: start_of(child.id()), ..this.clone() };
        assert!(!this.sees_dead(&other), "it is alive");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(this.sees_dead(&other));
        let elsewhere = Instance { host: "elsewhere".into(), ..other.clone() };
        assert!(!this.sees_dead(&elsewhere));
        let other_boot = Instance { scope: Some(("x".into(), "y".into())), ..other };
        assert!(!this.sees_dead(&other_boot));
    }
}
