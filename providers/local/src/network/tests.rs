//! Tests with access to internals: a crash after every step.

mod hostile;

use std::{collections::BTreeSet, path::Path};

use tempfile::TempDir;

use super::*;
use crate::namespace::{Kind, PodNamespaces, pin, unpin};

const STEPS: [AttachStep; 7] = [
    AttachStep::Reserved,
    AttachStep::Paired,
    AttachStep::Checked,
    AttachStep::Hairpinned,
    AttachStep::Addressed,
    AttachStep::Routed,
    AttachStep::Published,
];

/// A network for a test, which removes everything on drop.
struct TestSite {
    root: TempDir,
    settings: NetworkSettings,
}

impl TestSite {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let settings = NetworkSettings { dir: root.path().join("network"), subnet: None, nat: true };
        pin(root.path(), &PodNamespaces { network: true, ..PodNamespaces::default() }).await.unwrap();
        Self { root, settings }
    }

    fn netns(&self) -> std::path::PathBuf {
        Kind::Net.path(self.root.path())
    }

    /// Opens the network as a new process does, from its files.
    async fn open(&self) -> Network {
        Network::open(self.settings.clone()).await.unwrap()
    }
}

impl Drop for TestSite {
    fn drop(&mut self) {
        let (root, settings) = (self.root.path().to_owned(), self.settings.clone());
        let tidied = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                unpin(&root).await.unwrap();
                let network = Network::open(settings).await.unwrap();
                network.reconcile(&BTreeSet::new()).await.unwrap();
                assert!(network.close().await.unwrap());
            });
        });
        assert!(tidied.join().is_ok() || std::thread::panicking());
    }
}

fn ports(host_port: u16) -> Vec<PortMapping> {
    vec![PortMapping {
        protocol: Protocol::Tcp,
        container_port: 80,
        host_port,
        host_ip: "127.0.0.1".to_owned(),
    }]
}

/// Ports of the bridge, and number of files.
fn remaining(network: &Network, dir: &Path) -> (Vec<String>, usize) {
    let socket = RouteSocket::open().unwrap();
    let bridge = socket.link(network.bridge()).unwrap().unwrap();
    let links = socket.links().unwrap().into_iter().filter(|link| link.master == Some(bridge.index));
    (links.map(|link| link.name).collect(), std::fs::read_dir(dir.join("sandboxes")).unwrap().count())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn after_a_crash_at_any_step_of_attach_reconcile_removes_everything() {
    for step in STEPS {
        let site = TestSite::new().await;
        let before = site.open().await;
        before.0.attach("pod", &site.netns(), &ports(61_001), step).unwrap();
        assert_ne!(remaining(&before, &site.settings.dir).1, 0, "{step:?}");
        drop(before);

        let network = site.open().await;
        assert_eq!(network.reconcile(&BTreeSet::new()).await.unwrap(), ["pod"], "{step:?}");
        assert_eq!(remaining(&network, &site.settings.dir), (Vec::new(), 0), "{step:?}");
        let inside =
            crate::namespace::run_inside(&site.netns(), || RouteSocket::open()?.link(INTERFACE)).await;
        assert_eq!(inside.unwrap().unwrap(), None, "{step:?}");
        assert!(network.close().await.unwrap());
        assert_eq!(RouteSocket::open().unwrap().link(network.bridge()).unwrap(), None, "{step:?}");
        assert!(!nft::tables().unwrap().contains(&network.bridge().to_owned()), "{step:?}");
        let checks = nft::rule_counts(Family::Netdev).unwrap();
        let own = network.0.host_interface("pod");
        assert!(!checks.keys().any(|(table, _)| *table == own), "{step:?}: {checks:?}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn after_a_crash_at_any_step_attach_can_be_repeated() {
    for step in STEPS {
        let site = TestSite::new().await;
        let address = site.open().await.0.attach("pod", &site.netns(), &ports(61_002), step).unwrap();
        let network = site.open().await;
        assert_eq!(
            network.attach("pod", &site.netns(), &ports(61_002)).await.unwrap(),
            [address],
            "{step:?}"
        );
        let netns = site.netns();
        let found = crate::namespace::run_inside(&netns, || {
            let socket = RouteSocket::open()?;
            let link = socket.link(INTERFACE)?.map(|link| link.index);
            std::io::Result::Ok((link, socket.default_link()?, socket.addresses(link)?))
        });
        let (link, default, addresses) = found.await.unwrap().unwrap();
        assert!(link.is_some() && link == default, "{step:?}");
        assert_eq!(addresses.iter().map(|(address, _)| *address).collect::<Vec<_>>(), [address], "{step:?}");
        assert_eq!(remaining(&network, &site.settings.dir).0.len(), 1, "{step:?}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_link_without_a_record_is_removed() {
    let site = TestSite::new().await;
    let network = site.open().await;
    network.attach("pod", &site.netns(), &[]).await.unwrap();
    std::fs::remove_file(site.settings.dir.join("sandboxes/pod.json")).unwrap();
    let network = site.open().await;
    assert_eq!(remaining(&network, &site.settings.dir).0.len(), 1);
    assert_eq!(network.reconcile(&BTreeSet::new()).await.unwrap(), Vec::<String>::new());
    assert_eq!(remaining(&network, &site.settings.dir), (Vec::new(), 0));
}

/// The thread that checks the rules may have found the bridge just before the network was closed.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_rules_of_a_closed_network_are_not_put_back() {
    let site = TestSite::new().await;
    let network = site.open().await;
    network.reconcile(&BTreeSet::new()).await.unwrap();
    let has_rules = || nft::tables().unwrap().contains(&network.bridge().to_owned());
    assert!(has_rules());
    assert!(network.close().await.unwrap());
    network.0.check_chains().unwrap();
    assert!(!has_rules());
}

/// As after a start whose reconciliation failed, and after a pod was attached to a network that had been closed.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_rules_of_a_network_are_put_back_from_the_moment_it_is_open() {
    let site = TestSite::new().await;
    let network = site.open().await;
    let is_restored = || {
        nft::remove(Family::Ip, network.bridge()).unwrap();
        network.0.check_rules().unwrap();
        nft::tables().unwrap().contains(&network.bridge().to_owned())
    };
    assert!(is_restored());
    assert!(network.close().await.unwrap());
    network.0.attach("pod", &site.netns(), &[], AttachStep::Routed).unwrap();
    assert!(is_restored());
}

/// As a cleanup of the host's network would do.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_removed_bridge_is_created_again_for_the_next_pod() {
    let site = TestSite::new().await;
    let network = site.open().await;
    let socket = RouteSocket::open().unwrap();
    socket.delete(socket.link(network.bridge()).unwrap().unwrap().index).unwrap();
    network.attach("pod", &site.netns(), &[]).await.unwrap();
    assert_eq!(remaining(&network, &site.settings.dir).0.len(), 1);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_link_with_the_bridges_name_and_another_type_is_an_error() {
    let site = TestSite::new().await;
    let network = site.open().await;
    network.attach("pod", &site.netns(), &[]).await.unwrap();
    let name = network.0.host_interface("pod");
    let socket = RouteSocket::open().unwrap();
    let error = bridge::ensure(&socket, &name, network.subnet(), 1500).unwrap_err().to_string();
    assert_eq!(error, format!("the link {name} exists and is not a bridge (but a \"veth\"): remove it"));
}

#[test]
#[ignore = "needs root: make test"]
fn without_the_capability_the_error_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let settings = NetworkSettings { dir: dir.path().to_owned(), subnet: None, nat: true };
    // Capabilities belong to a thread.
    let opened = std::thread::spawn(move || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        sets.permitted.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        bridge::open(&settings)
    });
    let error = opened.join().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("create the bridge vk"), "{error}");
    assert!(
        error.ends_with("Operation not permitted (os error 1) (needs CAP_NET_ADMIN: run as root)"),
        "{error}"
    );
}

#[test]
fn an_unsupported_operation_is_reported_with_a_hint() {
    let error = Error::kernel("create the bridge vk0")(std::io::Error::from_raw_os_error(95)).to_string();
    assert_eq!(
        error,
        "create the bridge vk0: Operation not supported (os error 95) (not supported by this kernel: load or build the module)"
    );
}

#[test]
fn bridge_names_of_two_nodes_differ_and_are_short_enough() {
    let name = |place: &str| format!("vk{}", bridge::hash(&[place.as_bytes()], 8));
    assert_ne!(name("/var/lib/a"), name("/var/lib/b"));
    assert_eq!(name("/var/lib/a").len(), 10);
    let parts = |a: &str, b: &str| bridge::hash(&[a.as_bytes(), b.as_bytes()], 12);
    assert_ne!(parts("ab", "c"), parts("a", "bc"));
    assert_eq!(parts("a", "b").len() + 2, 14);
}
