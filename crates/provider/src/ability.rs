//! Optional features of providers: logs, exec, attach, port-forward, stats, fit.
//!
//! Each is a trait with an accessor in [`Provider`] that returns `None` if the backend does not support it. The kubelet API
//! then responds with 501.

mod fit;
mod logs;
mod session;
mod stats;

use std::fmt;

use crate::Provider;

pub use self::{
    fit::{Cause, Fit, LowerNode, Verdict},
    logs::{LogBody, LogOptions, LogStream, Logs, Output, Since},
    session::{
        Attach, AttachOptions, BoxDuplex, BoxRead, BoxWrite, Duplex, Exec, ExecOptions, Exit, Forward,
        PortForward, Session, Started, TermSize,
    },
    stats::{
        ContainerStats, CpuStats, FsStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats,
        PodReference, PodStats, Stats, Summary,
    },
};

/// The optional features that a provider supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// [`Logs`].
    pub logs: bool,
    /// [`Exec`].
    pub exec: bool,
    /// [`Attach`].
    pub attach: bool,
    /// [`PortForward`].
    pub port_forward: bool,
    /// [`Stats`].
    pub stats: bool,
    /// [`Fit`].
    pub fit: bool,
}

impl Abilities {
    /// The features of this provider.
    pub fn of(provider: &dyn Provider) -> Self {
        Self {
            logs: provider.logs().is_some(),
            exec: provider.exec().is_some(),
            attach: provider.attach().is_some(),
            port_forward: provider.port_forward().is_some(),
            stats: provider.stats().is_some(),
            fit: provider.fit().is_some(),
        }
    }
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.logs, "logs"),
            (self.exec, "exec"),
            (self.attach, "attach"),
            (self.port_forward, "port-forward"),
            (self.stats, "stats"),
            (self.fit, "fit"),
        ];
        let mut names = all.into_iter().filter_map(|(has, name)| has.then_some(name));
        f.write_str(names.next().unwrap_or("none"))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}
