//! One pod on a real account: `VK_LIVE_ECI=eci.yaml cargo test -p vk-provider-eci --features live --test live`. It costs money, and is not built
//! otherwise. It removes what it has created, found by its tags, also if it fails.

#![expect(clippy::unwrap_used, reason = "a failed assumption of a test is a failed test")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::StreamExt as _;
use vk_provider::{
    Config, Context, Extensions, Factory as _, NodeEvent, Provider,
    inventory::{Inventory, InventoryScope},
};
use vk_provider_eci::EciFactory;
use vk_supervisor::Supervisor;
use vk_testing::conformance::{Feature, Subject};

/// The node of this test: no other may have this name in the account.
const NODE: &str = "vk-live-test";

/// The account that the configuration names.
struct Account(Config);

fn config() -> Config {
    let path = std::env::var_os("VK_LIVE_ECI").expect("set VK_LIVE_ECI to the path of a configuration");
    let path = PathBuf::from(path);
    let text = std::fs::read_to_string(&path).unwrap();
    Config::File { path, text }
}

fn context() -> Context {
    Context {
        node_name: NODE.to_owned(),
        internal_ip: "127.0.0.1".parse().unwrap(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: Some("vk-live-test".to_owned()),
        state_dir: PathBuf::from("unused"),
        shared_dir: PathBuf::from("unused"),
        extensions: Extensions::new(),
        supervisor: Supervisor::new(),
    }
}

#[async_trait::async_trait]
impl Subject for Account {
    async fn open(&self, context: Context) -> vk_provider::Result<Arc<dyn Provider>> {
        let context = Context { node_name: NODE.to_owned(), cluster: Some(NODE.to_owned()), ..context };
        let backend = EciFactory::default().open(self.0.clone(), context).await?;
        match backend.nodes().next().await {
            Some(NodeEvent::Added(_, provider)) => Ok(provider),
            other => panic!("a backend with one node begins with it: {other:?}"),
        }
    }

    fn lacks(&self) -> &[Feature] {
        &[
            Feature::Attach,
            Feature::PortForward,
            Feature::Fit,
            Feature::EphemeralContainers,
            Feature::ShortenGrace,
            Feature::ClosedPorts,
        ]
    }

    fn limit(&self) -> Duration {
        Duration::from_mins(5)
    }
}

/// Removes every group of this test's node.
async fn clean_up(inventory: &Arc<dyn Inventory>) {
    let scope = InventoryScope { cluster: None, node: Some(NODE.to_owned()) };
    for group in inventory.groups(&scope).await.unwrap() {
        inventory.remove(&scope, &group.id).await.unwrap();
    }
}

mod suite {
    vk_testing::conformance!(super::Account(super::config()));
}

#[tokio::test]
async fn the_account_is_ready_and_nothing_is_left_of_earlier_runs() {
    let factory = EciFactory::default();
    let findings = factory.examine(config(), context()).await;
    assert!(
        findings.iter().all(|finding| finding.level < vk_provider::finding::FindingLevel::Error),
        "{findings:?}"
    );
    let inventory = factory.inventory(config(), context()).await.unwrap().unwrap();
    clean_up(&inventory).await;
}
