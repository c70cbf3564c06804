//! `virtual-kubelet placement print rbac`.

use clap::Args;
use vk_placement::rbac::{manifests, webhook_manifests};

use crate::cli::{Failure, output::print};

/// Prints the ServiceAccount of the placement process, its roles, and policies that limit how it may change pods and which Secret it may
/// create.
#[derive(Debug, Args)]
pub(super) struct PrintRbac {
    /// Namespace of the ServiceAccount, its ConfigMap, its Lease and its Secret
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE", default_value = "kube-system")]
    placement_namespace: String,
    /// Permit placement to write its CAs to the configuration of the webhook, too. Not needed with certificates in files
    #[arg(long)]
    webhook: bool,
}

// === impl PrintRbac ===

impl PrintRbac {
    pub(super) fn execute(&self) -> Result<(), Failure> {
        let mut all = manifests(&self.placement_namespace);
        if self.webhook {
            all.push_str("---\n");
            all.push_str(&webhook_manifests(&self.placement_namespace));
        }
        Ok(print(&all)?)
    }
}
