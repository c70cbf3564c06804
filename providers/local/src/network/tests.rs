//! What needs the insides: a crash behind every step.

use std::{collections::BTreeSet, path::Path};

use tempfile::TempDir;

use super::*;
use crate::namespace::{Kind, Pin, pin, unpin};

const STEPS: [Step; 6] =
    [Step::Reserved, Step::Paired, Step::Hairpinned, Step::Addressed, Step::Routed, Step::Published];

/// Removes what a test made, whatever became of it.
struct Site {
    root: TempDir,
    settings: NetworkSettings,
}

impl Site {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let settings = NetworkSettings { dir: root.path().join("network"), subnet: None, nat: true };
        pin(root.path(), &Pin { network: true, ..Pin::default() }).await.unwrap();
        Self { root, settings }
    }

    fn netns(&self) -> std::path::PathBuf {
        Kind::Net.path(self.root.path())
    }

    /// What a process that is started has, which knows the files only.
    async fn open(&self) -> Network {
        Network::open(self.settings.clone()).await.unwrap()
    }
}

impl Drop for Site {
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

/// Links of the bridge, and records.
fn left(network: &Network, dir: &Path) -> (Vec<String>, usize) {
    let routing = Routing::open().unwrap();
    let bridge = routing.link(network.bridge()).unwrap().unwrap();
    let links = routing.links().unwrap().into_iter().filter(|link| link.master == Some(bridge.index));
    (links.map(|link| link.name).collect(), std::fs::read_dir(dir.join("sandboxes")).unwrap().count())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn after_a_crash_behind_any_step_of_attach_reconcile_leaves_nothing() {
    for step in STEPS {
        let site = Site::new().await;
        let before = site.open().await;
        before.0.attach("pod", &site.netns(), &ports(61_001), step).unwrap();
        assert_ne!(left(&before, &site.settings.dir).1, 0, "{step:?}");
        drop(before);

        let network = site.open().await;
        assert_eq!(network.reconcile(&BTreeSet::new()).await.unwrap(), ["pod"], "{step:?}");
        assert_eq!(left(&network, &site.settings.dir), (Vec::new(), 0), "{step:?}");
        let inside = crate::namespace::inside(&site.netns(), || Routing::open()?.link(INTERFACE)).await;
        assert_eq!(inside.unwrap().unwrap(), None, "{step:?}");
        assert!(network.close().await.unwrap());
        assert_eq!(Routing::open().unwrap().link(network.bridge()).unwrap(), None, "{step:?}");
        assert!(!nft::tables().unwrap().contains(&network.bridge().to_owned()), "{step:?}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn after_a_crash_behind_any_step_of_attach_it_can_be_done_again() {
    for step in STEPS {
        let site = Site::new().await;
        let address = site.open().await.0.attach("pod", &site.netns(), &ports(61_002), step).unwrap();
        let network = site.open().await;
        assert_eq!(
            network.attach("pod", &site.netns(), &ports(61_002)).await.unwrap(),
            [address],
            "{step:?}"
        );
        let netns = site.netns();
        let found = crate::namespace::inside(&netns, || {
            let routing = Routing::open()?;
            let link = routing.link(INTERFACE)?.map(|link| link.index);
            std::io::Result::Ok((link, routing.default_link()?, routing.addresses(link)?))
        });
        let (link, default, addresses) = found.await.unwrap().unwrap();
        assert!(link.is_some() && link == default, "{step:?}");
        assert_eq!(addresses.iter().map(|(address, _)| *address).collect::<Vec<_>>(), [address], "{step:?}");
        assert_eq!(left(&network, &site.settings.dir).0.len(), 1, "{step:?}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_link_without_a_record_is_removed() {
    let site = Site::new().await;
    let network = site.open().await;
    network.attach("pod", &site.netns(), &[]).await.unwrap();
    std::fs::remove_file(site.settings.dir.join("sandboxes/pod.json")).unwrap();
    let network = site.open().await;
    assert_eq!(left(&network, &site.settings.dir).0.len(), 1);
    assert_eq!(network.reconcile(&BTreeSet::new()).await.unwrap(), Vec::<String>::new());
    assert_eq!(left(&network, &site.settings.dir), (Vec::new(), 0));
}

/// Somebody removed the bridge, as a clean-up of the machine's network does.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_bridge_that_was_removed_is_made_again_for_the_next_pod() {
    let site = Site::new().await;
    let network = site.open().await;
    let routing = Routing::open().unwrap();
    routing.delete(routing.link(network.bridge()).unwrap().unwrap().index).unwrap();
    network.attach("pod", &site.netns(), &[]).await.unwrap();
    assert_eq!(left(&network, &site.settings.dir).0.len(), 1);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_link_of_the_bridges_name_that_is_none_is_refused() {
    let site = Site::new().await;
    let network = site.open().await;
    network.attach("pod", &site.netns(), &[]).await.unwrap();
    let name = network.0.host_end("pod");
    let routing = Routing::open().unwrap();
    let error = machine::bridge(&routing, &name, network.subnet(), 1500).unwrap_err().to_string();
    assert_eq!(error, format!("the link {name} exists and is no bridge (but a \"veth\"): remove it"));
}

#[test]
#[ignore = "needs root: make test"]
fn without_the_capability_the_error_says_which_one_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let settings = NetworkSettings { dir: dir.path().to_owned(), subnet: None, nat: true };
    // Capabilities are a thread's.
    let opened = std::thread::spawn(move || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        sets.permitted.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        machine::open(&settings)
    });
    let error = opened.join().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("make the bridge vk"), "{error}");
    assert!(
        error.ends_with("Operation not permitted (os error 1) (needs CAP_NET_ADMIN: run as root)"),
        "{error}"
    );
}

#[test]
fn a_kernel_without_bridges_is_said_to_be_one() {
    let error = Error::kernel("make the bridge vk0")(std::io::Error::from_raw_os_error(95)).to_string();
    assert_eq!(
        error,
        "make the bridge vk0: Operation not supported (os error 95) (this kernel lacks it: load or build the module)"
    );
}

#[test]
fn two_nodes_of_a_machine_have_different_names_of_lawful_length() {
    let name = |place: &str| format!("vk{}", machine::hash(&[place.as_bytes()], 8));
    assert_ne!(name("/var/lib/a"), name("/var/lib/b"));
    assert_eq!(name("/var/lib/a").len(), 10);
    let parts = |a: &str, b: &str| machine::hash(&[a.as_bytes(), b.as_bytes()], 12);
    assert_ne!(parts("ab", "c"), parts("a", "bc"));
    assert_eq!(parts("a", "b").len() + 2, 14);
}
