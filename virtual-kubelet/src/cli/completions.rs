//! `virtual-kubelet completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, output::print};

/// Prints a completion script.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

// === impl Completions ===

impl Completions {
    pub(super) fn execute(&self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "virtual-kubelet", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
