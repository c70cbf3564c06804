//! `virtual-kubelet version`.

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output::print;
use crate::version::{KUBERNETES_VERSION, kubelet_version};

/// Prints the version.
#[derive(Debug, Args)]
pub(super) struct Version {
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

// === impl Version ===

impl Version {
    pub(super) fn execute(&self) -> anyhow::Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        // Set by the build script if available.
        let commit = option_env!("VK_GIT_COMMIT").unwrap_or("unknown");
        let rustc = option_env!("VK_RUSTC").unwrap_or("unknown");
        let kubelet = kubelet_version();
        let text = match self.output {
            Output::Text => format!(
                "virtual-kubelet {version}\ncommit:     {commit}\nrustc:      {rustc}\nkubernetes: {KUBERNETES_VERSION}\nkubelet:    {kubelet}\n"
            ),
            Output::Json => format!(
                "{:#}\n",
                json!({
                    "version": version,
                    "gitCommit": commit,
                    "rustc": rustc,
                    "kubernetesVersion": KUBERNETES_VERSION,
                    "kubeletVersion": kubelet,
                })
            ),
        };
        print(&text)
    }
}
