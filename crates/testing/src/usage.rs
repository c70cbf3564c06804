//! Resource usage of a process, from `/proc`.

use std::{fs, io, time::Duration};

/// The unit of times in `/proc`: always 1/100 second for user programs (USER_HZ).
const TICKS_PER_SECOND: u64 = 100;

/// The resource usage of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory.
    pub resident_bytes: u64,
    /// CPU time since its start.
    pub cpu: Duration,
    /// Open files and sockets.
    pub files: usize,
}

impl Usage {
    /// Reads the usage of a process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let malformed = || io::Error::other(format!("/proc/{pid} has an unexpected format"));
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or_else(malformed)?;
        let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().map_err(|_| malformed())?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name in parentheses may contain anything; user and system time are the 12th and 13th field after it.
        let fields = stat.rsplit_once(')').ok_or_else(malformed)?.1;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks: u64 = ticks.sum::<Result<_, _>>().map_err(|_| malformed())?;
        Ok(Self {
            resident_bytes: kilobytes * 1024,
            cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
            files: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
        })
    }

    /// Average number of busy CPUs since an earlier reading, `elapsed` ago.
    pub fn cores_since(&self, earlier: &Self, elapsed: Duration) -> f64 {
        self.cpu.saturating_sub(earlier.cpu).as_secs_f64() / elapsed.as_secs_f64()
    }

    /// Resident memory in megabytes.
    pub fn megabytes(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure to print")]
        let bytes = self.resident_bytes as f64;
        bytes / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.resident_bytes > 100_000 && usage.files > 2, "{usage:?}");
    }

    #[test]
    fn an_unknown_process_is_an_error() {
        assert!(Usage::of(u32::MAX).is_err());
    }
}
