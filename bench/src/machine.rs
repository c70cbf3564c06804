//! On what it was measured: numbers mean little without.

use std::fs;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use vk_supervisor::Clock;
use vk_testing::ControlPlane;

/// The machine, and what ran on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gb: f64,
    /// Processes that wanted to run when the measuring began, over one minute. Above one or so, somebody else worked.
    pub(crate) load_before: f64,
    pub(crate) kubernetes: String,
}

impl Machine {
    /// Looks at this machine. The version of Kubernetes is known once a control plane runs.
    pub(crate) fn look() -> anyhow::Result<Self> {
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

    /// Notes the version of a control plane.
    pub(crate) async fn saw(&mut self, cluster: &ControlPlane) -> anyhow::Result<()> {
        if self.kubernetes.is_empty() {
            self.kubernetes = cluster.admin()?.apiserver_version().await?.git_version;
        }
        Ok(())
    }
}

/// The most memory that a process ever held, in megabytes.
pub(crate) fn peak_megabytes(pid: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024.0 / 1e6)
}
