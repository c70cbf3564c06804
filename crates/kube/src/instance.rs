//! Identity of a process. It is written to the lease that the process holds, so that a second process notices.

use std::{fmt, fs, process, str::FromStr};

/// A process, formatted as `HOST/BOOT/PIDNS/PID/START`. Parts that the system does not provide are empty or 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    host: String,
    /// Boot ID and PID namespace. PIDs are only comparable within the same pair.
    scope: Option<(String, String)>,
    pid: u32,
    /// Start time in kernel ticks, to detect a reused PID.
    start: Option<u64>,
}

impl Instance {
    /// This process.
    pub fn current() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let namespace =
            fs::read_link("/proc/self/ns/pid").ok().map(|link| link.to_string_lossy().into_owned());
        let host = read("/proc/sys/kernel/hostname").filter(|host| !host.is_empty());
        Self {
            host: host.unwrap_or_else(|| "unknown".to_owned()).replace('/', "_"),
            scope: read("/proc/sys/kernel/random/boot_id").zip(namespace),
            pid: process::id(),
            start: start_time(process::id()),
        }
    }

    /// Whether the other process is certainly dead: it ran in our PID namespace and no longer exists.
    pub fn is_known_dead(&self, other: &Self) -> bool {
        self.scope.is_some()
            && self.scope == other.scope
            && self.host == other.host
            && other.start.is_some()
            && start_time(other.pid) != other.start
    }

    /// Description for messages.
    pub fn describe(&self) -> String {
        format!("process {} on host {}", self.pid, self.host)
    }
}

/// Start time of a process in ticks after boot: field 22 of its stat file, counted after the parenthesised name, which
/// may contain anything. Zombies count as dead.
fn start_time(pid: u32) -> Option<u64> {
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
    fn an_instance_round_trips_through_text() {
        let this = Instance::current();
        assert_eq!(this.to_string().parse(), Ok(this.clone()));
        assert!("whatever".parse::<Instance>().is_err());
        assert!(!this.is_known_dead(&this));
    }

    #[test]
    fn a_local_process_is_known_dead_after_it_exits_but_a_remote_one_is_not() {
        let this = Instance::current();
        let mut child = process::Command::new("cat").stdin(process::Stdio::piped()).spawn().unwrap();
        let other = Instance { pid: child.id(), start: start_time(child.id()), ..this.clone() };
        assert!(!this.is_known_dead(&other), "it is alive");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(this.is_known_dead(&other));
        let elsewhere = Instance { host: "elsewhere".into(), ..other.clone() };
        assert!(!this.is_known_dead(&elsewhere));
        let other_boot = Instance { scope: Some(("x".into(), "y".into())), ..other };
        assert!(!this.is_known_dead(&other_boot));
    }
}
