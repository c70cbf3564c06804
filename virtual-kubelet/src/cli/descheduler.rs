//! `virtual-kubelet descheduler`.

use clap::Args;

use super::{
    Failure, Flags,
    output::{obsolete_flags, print_diagnostic},
    placement::{EvictionFlags, PlacementFlags, run_alone},
};
use crate::{
    Registry,
    config::{GoDuration, Layer, PlacementPart},
};

/// Evicts pods that are stuck on a virtual node, if another node has room: `placement --descheduler` alone.
#[derive(Debug, Args)]
pub(super) struct Descheduler {
    #[command(flatten)]
    eviction: EvictionFlags,
    /// Namespace of the Leases, the ConfigMap and the certificates [default: kube-system]
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE")]
    placement_namespace: Option<String>,
    /// tensile-kube's name of --descheduler-after
    #[arg(long, value_name = "DURATION", hide = true, conflicts_with = "descheduler_after")]
    descheduling_interval: Option<GoDuration>,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    obsolete: ObsoleteFlags,
}

/// Flags of tensile-kube's descheduler that have no effect.
#[derive(Debug, Args)]
struct ObsoleteFlags {
    #[arg(long, hide = true)]
    policy_config_file: Option<String>,
    #[arg(long, hide = true)]
    node_selector: Option<String>,
    #[arg(long, hide = true)]
    max_pods_to_evict_per_node: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    evict_local_storage_pods: Option<String>,
}

// === impl Descheduler ===

impl Descheduler {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        for warning in self.obsolete.warnings() {
            print_diagnostic("warning", &warning);
        }
        let layer = self.layer();
        let flags = before.overlaid_with(self.flags);
        run_alone(&flags, layer, Some(PlacementPart::Descheduler), registry).await
    }
}

impl Descheduler {
    /// The flags as a layer over the configuration file.
    fn layer(&self) -> Layer {
        let mut eviction = self.eviction.clone();
        eviction.descheduler_after = eviction.descheduler_after.or(self.descheduling_interval);
        let placement = PlacementFlags {
            eviction,
            placement_namespace: self.placement_namespace.clone(),
            ..PlacementFlags::default()
        };
        placement.layer()
    }
}

// === impl ObsoleteFlags ===

impl ObsoleteFlags {
    fn warnings(&self) -> Vec<String> {
        let flags = [
            (
                "policy-config-file",
                &self.policy_config_file,
                "pods that no lower node takes are evicted, and no others",
            ),
            ("node-selector", &self.node_selector, "only virtual nodes that can be asked are considered"),
            (
                "max-pods-to-evict-per-node",
                &self.max_pods_to_evict_per_node,
                "set --descheduler-most per minute",
            ),
            (
                "evict-local-storage-pods",
                &self.evict_local_storage_pods,
                "a pod that never ran has stored nothing",
            ),
        ];
        obsolete_flags(flags)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        descheduler: Descheduler,
    }

    #[test]
    fn flags_of_tensile_kube_are_accepted() {
        let arguments = [
            "descheduler",
            "--descheduling-interval=5m",
            "--dry-run",
            "--policy-config-file=/policy",
            "--node-selector=type=virtual-kubelet",
            "--max-pods-to-evict-per-node=3",
            "--evict-local-storage-pods",
        ];
        let Command { descheduler } = Command::try_parse_from(arguments).unwrap();
        let expected = json!({"placement": {"descheduler": {"after": "5m", "dryRun": true}}});
        assert_eq!(descheduler.layer(), Layer::from_value(expected).0);
        let warnings = descheduler.obsolete.warnings();
        assert_eq!(warnings.len(), 4);
        assert!(warnings.iter().all(|warning| warning.contains(" does nothing: ")), "{warnings:?}");
        let twice = ["descheduler", "--descheduling-interval=5m", "--descheduler-after=1m"];
        assert!(Command::try_parse_from(twice).is_err());
        assert_eq!(
            Command::try_parse_from(["descheduler"]).unwrap().descheduler.obsolete.warnings(),
            [""; 0]
        );
    }
}
