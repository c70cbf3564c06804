//! Pods that pretend to be others, and somebody who removes the rules. Each test has a network namespace of its own as its
//! host, with its own rules.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use super::*;
use crate::namespace::run_inside_blocking;

/// Timeout of something that should happen.
const LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
const PORT: u16 = 4000;

/// A host with a network, in a namespace of its own, and its pods. Everything goes with the namespaces.
struct TestHost {
    root: PathBuf,
    network: Network,
}

/// A directory with pinned namespaces, which are unpinned on drop.
struct PinnedNamespaces(TempDir);

impl Drop for PinnedNamespaces {
    fn drop(&mut self) {
        for dir in std::fs::read_dir(self.0.path()).into_iter().flatten().flatten() {
            // Not all of them have namespaces.
            let _ = runtime().block_on(unpin(&dir.path()));
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl TestHost {
    fn netns(&self, name: &str) -> PathBuf {
        Kind::Net.path(&self.root.join(name))
    }

    async fn pod(&self, name: &str) -> Ipv4Addr {
        pin_namespace(&self.root, name).await;
        match self.network.attach(name, &self.netns(name), &[]).await.unwrap()[..] {
            [IpAddr::V4(address)] => address,
            ref other => panic!("{other:?}"),
        }
    }

    fn inside<T: Send>(&self, pod: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = crate::namespace::open(&self.netns(pod)).unwrap();
        run_inside_blocking(&namespace, work).unwrap()
    }
}

async fn pin_namespace(root: &Path, name: &str) {
    let dir = root.join(name);
    std::fs::create_dir(&dir).unwrap();
    pin(&dir, &PodNamespaces { network: true, ..PodNamespaces::default() }).await.unwrap();
}

/// Runs a test on a host of its own. The threads of its runtime are in the namespace, because the first one is.
fn on_a_host<F: Future<Output = ()>>(test: impl FnOnce(TestHost) -> F + Send) {
    let pinned = PinnedNamespaces(tempfile::tempdir().unwrap());
    let root = pinned.0.path().to_owned();
    runtime().block_on(pin_namespace(&root, "host"));
    let host = crate::namespace::open(&Kind::Net.path(&root.join("host"))).unwrap();
    let done = run_inside_blocking(&host, || {
        runtime().block_on(async {
            let settings = NetworkSettings { dir: root.join("network"), subnet: None, nat: true };
            let network = Network::open(settings).await.unwrap();
            assert_eq!((network.nat_error(), network.source_check_error()), (None, None));
            test(TestHost { root, network }).await;
        });
    });
    done.expect("the test panicked");
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let held = async {
        while !holds() {
            tokio::time::sleep(POLL).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, held).await.is_ok(), "{what}");
}

/// Sends from an address of a pod, which it first gives itself. An error says that it could not.
fn send_as(source: Ipv4Addr, subnet: Subnet, text: &str, target: Ipv4Addr) -> io::Result<()> {
    let socket = RouteSocket::open()?;
    let eth0 = socket.link(INTERFACE)?.unwrap().index;
    socket.add_address(eth0, source, subnet)?;
    let sender = UdpSocket::bind((source, 0))?;
    sender.set_broadcast(true)?;
    sender.send_to(text.as_bytes(), (target, PORT)).map(drop)
}

/// What arrives first at a socket.
fn first(socket: &UdpSocket) -> String {
    let mut buffer = [0; 64];
    let (length, _) = socket.recv_from(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Point 34. To a pod on the same bridge, and to the host.
#[test]
#[ignore = "needs root: make test"]
fn a_pod_cannot_send_from_the_address_of_another_pod() {
    on_a_host(|host| async move {
        let (own, other) = (host.pod("own").await, host.pod("other").await);
        let peer = host.pod("peer").await;
        let subnet = host.network.subnet();
        let at_peer = host.inside("peer", || UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        let at_host = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
        for (place, target, receiver) in [("pod", peer, &at_peer), ("host", host.network.gateway(), &at_host)]
        {
            receiver.set_read_timeout(Some(LIMIT)).unwrap();
            host.inside("own", || {
                // The neighbour is known by its address, so that the packet itself is sent at once.
                send_as(own, subnet, "warm", target).unwrap();
                send_as(other, subnet, "spoofed", target).unwrap();
                send_as(own, subnet, "honest", target).unwrap();
            });
            assert_eq!(first(receiver), "warm", "{place}");
            assert_eq!(first(receiver), "honest", "{place}");
        }
    });
}

/// Point 34.
#[test]
#[ignore = "needs root: make test"]
fn a_pod_cannot_send_from_the_mac_address_of_another_pod() {
    on_a_host(|host| async move {
        let (own, other) = (host.pod("own").await, host.pod("other").await);
        host.pod("peer").await;
        let subnet = host.network.subnet();
        // To everybody, because that needs no address resolution.
        let all = Ipv4Addr::from(u32::from(subnet.address()) | !u32::from(subnet.mask()));
        let receiver = host.inside("peer", || UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
        receiver.set_read_timeout(Some(LIMIT)).unwrap();
        host.inside("own", || {
            let socket = RouteSocket::open().unwrap();
            let eth0 = socket.link(INTERFACE).unwrap().unwrap().index;
            send_as(own, subnet, "warm", all).unwrap();
            socket.set_mac_address(eth0, bridge::mac_address(other)).unwrap();
            send_as(own, subnet, "spoofed", all).unwrap();
            socket.set_mac_address(eth0, bridge::mac_address(own)).unwrap();
            send_as(own, subnet, "honest", all).unwrap();
        });
        assert_eq!([first(&receiver), first(&receiver)], ["warm", "honest"]);
    });
}

/// Point 34.
#[test]
#[ignore = "needs root: make test"]
fn after_a_flush_of_all_rules_they_are_back_within_seconds() {
    on_a_host(|host| async move {
        let own = host.pod("own").await;
        let (network, bridge) = (host.network.clone(), host.network.bridge().to_owned());
        let interface = network.0.host_interface("own");
        let chains = network.0.chains().1;
        let check = [rules::source_check(&interface, own, bridge::mac_address(own))];
        let complete = || {
            let counts = |family| nft::rule_counts(family).unwrap();
            nft::has_all(&counts(Family::Ip), &bridge, &chains)
                && nft::has_all(&counts(Family::Netdev), &interface, &check)
        };
        assert!(complete());
        let maintained = network.clone();
        let flushes = async {
            for _ in 0..3 {
                nft::flush().unwrap();
                assert!(!complete());
                eventually("the rules are back", complete).await;
                eventually("host ports are reachable by 127.0.0.1", || bridge::routes_loopback(&bridge))
                    .await;
            }
        };
        tokio::select! {
            () = maintained.maintain_rules() => unreachable!("it goes on for ever"),
            () = flushes => {}
        }
        // Without the guard, pods must not be able to reach the host's loopback addresses.
        nft::flush().unwrap();
        network.0.check_rules().unwrap();
        assert!(complete() && bridge::routes_loopback(&bridge));
    });
}
