//! The host of a benchmark, and memory usage of processes.

use std::fs;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use vk_supervisor::Clock;
use vk_testing::ControlPlane;

/// Hardware and software of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostInfo {
    pub(crate) date: String,
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gb: f64,
    /// Load average over one minute before the benchmark. Above one or so, other processes disturbed it.
    pub(crate) load_before: f64,
    pub(crate) kubernetes: String,
}

impl HostInfo {
    /// Detects this host. The version of Kubernetes is added when a control plane runs.
    pub(crate) fn detect() -> anyhow::Result<Self> {
        let field = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let processor = field(&fs::read_to_string("/proc/cpuinfo")?, "model name").unwrap_or_default();
        let memory = field(&fs::read_to_string("/proc/meminfo")?, "MemTotal").context("no MemTotal")?;
        let kilobytes: f64 = memory.trim_end_matches(" kB").parse()?;
        let load = fs::read_to_string("/proc/loadavg")?;
        let date = Clock::system().now().to_string();
        Ok(Self {
            date: date.split('T').next().unwrap_or_default().to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            processor,
            memory_gb: (kilobytes / 1e6).round(),
            load_before: load.split(' ').next().unwrap_or_default().parse()?,
            kubernetes: String::new(),
        })
    }

    /// Records the version of a control plane.
    pub(crate) async fn record_version(&mut self, cluster: &ControlPlane) -> anyhow::Result<()> {
        if self.kubernetes.is_empty() {
            self.kubernetes = cluster.admin()?.apiserver_version().await?.git_version;
        }
        Ok(())
    }
}

/// The peak resident memory of a process, in megabytes.
pub(crate) fn peak_megabytes(pid: u32) -> anyhow::Result<f64> {
    megabytes(&fs::read_to_string(format!("/proc/{pid}/status"))?, "VmHWM")
}

/// The proportional set size of a process, in megabytes.
pub(crate) fn proportional_megabytes(pid: u32) -> anyhow::Result<f64> {
    megabytes(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?, "Pss")
}

/// The sum over processes and their descendants, except those with the command lines in `leave_out`.
pub(crate) fn proportional_megabytes_below(roots: &[u32], leave_out: &[&str]) -> anyhow::Result<f64> {
    let all: Vec<u32> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let parent = |pid: &u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let parents: std::collections::BTreeMap<u32, u32> =
        all.iter().filter_map(|pid| Some((*pid, parent(pid)?))).collect();
    let is_below = |pid: &&u32| {
        let mut at = Some(**pid);
        while let Some(here) = at.filter(|here| !roots.contains(here)) {
            at = parents.get(&here).copied();
        }
        at.is_some()
    };
    let command = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ")
    };
    let counted = all.iter().filter(is_below).filter(|pid| !leave_out.contains(&command(pid).as_str()));
    // Processes that have ended meanwhile are skipped.
    Ok(counted.filter_map(|pid| proportional_megabytes(*pid).ok()).sum())
}

/// The value of a field, which the kernel reports in units of 1,024 bytes.
fn megabytes(text: &str, name: &str) -> anyhow::Result<f64> {
    let behind = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
    let line = text.lines().find(behind).with_context(|| format!("no {name}"))?;
    let kilobytes: f64 = line[name.len() + 1..].trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proportional_size_is_the_whole_one_and_none_of_its_parts() {
        let text = "7f00-7fff ---p 00000000 00:00 0 [rollup]\nRss: 9000 kB\nPss:            1000 kB\nPss_Anon: 500 kB\n";
        assert!((megabytes(text, "Pss").unwrap() - 1.024).abs() < 1e-9);
        assert_eq!(megabytes(text, "PssX").unwrap_err().to_string(), "no PssX");
    }

    #[test]
    fn this_process_has_no_more_for_itself_than_it_ever_held() {
        let pid = std::process::id();
        let own = proportional_megabytes(pid).unwrap();
        assert!(own > 0.1 && own <= peak_megabytes(pid).unwrap(), "{own}");
    }
}
