//! `virtual-kubelet extender`.

use clap::Args;

use super::{
    Failure, Flags,
    placement::{PlacementFlags, PreferenceFlags, TlsFlags, run_alone},
};
use crate::{
    Registry,
    config::{PlacementPart, ServerAddr},
};

/// Answers kube-scheduler whether pods fit on virtual nodes: `placement --extender-listen` alone.
///
/// `placement print scheduler` prints the configuration of the scheduler.
#[derive(Debug, Args)]
pub(super) struct Extender {
    /// Address to listen on [default: :8443]
    #[arg(long = "extender-listen", value_name = "ADDRESS", env = "VK_PLACEMENT_EXTENDER_LISTEN")]
    listen: Option<ServerAddr>,
    #[command(flatten)]
    preference: PreferenceFlags,
    #[command(flatten)]
    tls: TlsFlags,
    /// Namespace of the Leases, the ConfigMap and the certificates [default: kube-system]
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE")]
    placement_namespace: Option<String>,
    #[command(flatten)]
    flags: Flags,
}

// === impl Extender ===

impl Extender {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let placement = PlacementFlags {
            extender_listen: self.listen,
            preference: self.preference,
            tls: self.tls,
            placement_namespace: self.placement_namespace,
            ..PlacementFlags::default()
        };
        let flags = before.overlaid_with(self.flags);
        run_alone(&flags, placement.layer(), Some(PlacementPart::Extender), registry).await
    }
}
