//! Pod networks in the kernel, with real connections.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod namespace;
mod test_network;

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
};

use vk_pod_engine::backend::{PortMapping, Protocol};
use vk_provider_local::{
    namespace::run_inside,
    network::{Network, NetworkSettings},
};

use self::test_network::{LIMIT, TestNetwork, call, free_port};

fn published(protocol: Protocol, container_port: u16, host_port: u16, host_ip: &str) -> PortMapping {
    PortMapping { protocol, container_port, host_port, host_ip: host_ip.to_owned() }
}

fn settings(test_network: &TestNetwork) -> NetworkSettings {
    NetworkSettings { dir: test_network.dir(), subnet: None, nat: true }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn pods_reach_each_other_by_address_and_share_a_port_number() {
    let mut test_network = TestNetwork::open().await;
    let a = test_network.pod("a", &[]).await;
    let b = test_network.pod("b", &[]).await;
    assert_ne!(a.address, b.address);
    test_network.serve(&a, 80).await;
    test_network.serve(&b, 80).await;

    assert_eq!(a.call((b.address, 80)).await.unwrap(), format!("b hears {}", a.address));
    assert_eq!(b.call((a.address, 80)).await.unwrap(), format!("a hears {}", b.address));
    // To itself, by its own address.
    assert_eq!(a.call((a.address, 80)).await.unwrap(), format!("a hears {}", a.address));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_host_reaches_a_pod_and_a_pod_the_host_but_not_its_loopback() {
    let mut test_network = TestNetwork::open().await;
    let mut other = TestNetwork::open().await;
    let pod = test_network.pod("pod", &[]).await;
    test_network.serve(&pod, 80).await;
    assert_eq!(
        call((pod.address, 80)).await.unwrap(),
        format!("pod hears {}", test_network.network.gateway())
    );

    // A listener on all addresses is reached at each address of the host.
    let everything = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = everything.local_addr().unwrap().port();
    test_network.answer("host", everything);
    for address in [test_network.network.gateway(), other.network.gateway()] {
        assert_eq!(pod.call((address, port)).await.unwrap(), format!("host hears {}", pod.address));
    }

    let hidden = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hidden.local_addr().unwrap().port();
    other.answer("loopback", hidden);
    assert_eq!(call((Ipv4Addr::LOCALHOST, port)).await.unwrap(), "loopback hears 127.0.0.1");
    for address in [Ipv4Addr::LOCALHOST, test_network.network.gateway()] {
        let error = pod.call((address, port)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}: {error}");
    }
}

/// A pod of another node stands for a remote host: it sees the host's address, not the pod's.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_pod_reaches_other_hosts_by_masquerading() {
    let mut test_network = TestNetwork::open().await;
    let mut world = TestNetwork::open().await;
    let pod = test_network.pod("pod", &[]).await;
    let far = world.pod("far", &[]).await;
    world.serve(&far, 80).await;
    assert_eq!(pod.call((far.address, 80)).await.unwrap(), format!("far hears {}", world.network.gateway()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_host_port_is_forwarded_from_everywhere_until_the_pod_is_detached() {
    let mut test_network = TestNetwork::open().await;
    let mut world = TestNetwork::open().await;
    let port = free_port();
    let pod = test_network.pod("pod", &[published(Protocol::Tcp, 80, port, "")]).await;
    let neighbour = test_network.pod("neighbour", &[]).await;
    let far = world.pod("far", &[]).await;
    test_network.serve(&pod, 80).await;
    let gateway = test_network.network.gateway();

    // From the host, by its addresses and by 127.0.0.1.
    for address in [gateway, world.network.gateway(), Ipv4Addr::LOCALHOST] {
        assert!(call((address, port)).await.unwrap().starts_with("pod hears "), "{address}");
    }
    // From elsewhere: the source address is kept.
    let heard = far.call((world.network.gateway(), port)).await.unwrap();
    assert_eq!(heard, format!("pod hears {gateway}"), "the other node masquerades its pods");
    // From a pod on the same bridge, and from the pod itself.
    assert_eq!(neighbour.call((gateway, port)).await.unwrap(), format!("pod hears {gateway}"));
    assert_eq!(pod.call((gateway, port)).await.unwrap(), format!("pod hears {gateway}"));

    test_network.network.detach("pod").await.unwrap();
    for address in [gateway, Ipv4Addr::LOCALHOST] {
        let error = call((address, port)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}: {error}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_udp_host_port_is_forwarded() {
    let mut test_network = TestNetwork::open().await;
    let port = free_port();
    let pod = test_network.pod("pod", &[published(Protocol::Udp, 53, port, "")]).await;
    test_network.echo(&pod, 53).await;
    for address in [test_network.network.gateway(), Ipv4Addr::LOCALHOST] {
        let answer = tokio::task::spawn_blocking(move || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(LIMIT))?;
            socket.connect((address, port))?;
            socket.send(b"hello")?;
            let mut buffer = [0; 16];
            let length = socket.recv(&mut buffer)?;
            io::Result::Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
        });
        assert_eq!(answer.await.unwrap().unwrap(), "hello", "{address}");
    }
    // TCP is not forwarded.
    assert_eq!(call((Ipv4Addr::LOCALHOST, port)).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

/// The client keeps sending, so that its conntrack entry does not expire.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_client_of_a_udp_host_port_reaches_the_next_pod() {
    let mut test_network = TestNetwork::open().await;
    let port = free_port();
    let ports = [published(Protocol::Udp, 53, port, "")];
    let client = UdpSocket::bind("0.0.0.0:0").unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    // Before there is a pod.
    client.send_to(b"?", (Ipv4Addr::LOCALHOST, port)).unwrap();
    for name in ["first", "second"] {
        let pod = test_network.pod(name, &ports).await;
        test_network.echo(&pod, 53).await;
        client.send_to(name.as_bytes(), (Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut buffer = [0; 16];
        let length = client.recv(&mut buffer).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&buffer[..length], name.as_bytes());
        test_network.network.detach(name).await.unwrap();
    }
}

/// A pod that can change its own network sends packets to 127.0.0.1 through the bridge.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_pod_that_controls_its_network_cannot_reach_the_hosts_loopback() {
    let mut test_network = TestNetwork::open().await;
    let pod = test_network.pod("pod", &[]).await;
    let hidden = UdpSocket::bind("127.0.0.1:0").unwrap();
    let open = UdpSocket::bind("0.0.0.0:0").unwrap();
    let targets = [
        (Ipv4Addr::LOCALHOST, hidden.local_addr().unwrap().port()),
        (test_network.network.gateway(), open.local_addr().unwrap().port()),
    ];
    pod.set_sysctls("net.ipv4.conf.eth0.route_localnet", "1").await;
    let netns = pod.netns();
    let sent = run_inside(&netns, move || {
        use nix::sys::socket::{setsockopt, sockopt::BindToDevice};
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        // Otherwise the address would be the pod's own.
        setsockopt(&socket, BindToDevice, &"eth0".into())?;
        targets.into_iter().try_for_each(|target| socket.send_to(b"hello", target).map(drop))
    });
    sent.await.unwrap().unwrap();
    // The second packet has arrived, so the first one has been processed.
    open.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(open.recv(&mut [0; 16]).unwrap(), 5);
    hidden.set_nonblocking(true).unwrap();
    assert_eq!(hidden.recv(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_bridge_has_no_ipv6_and_only_routes_loopback_with_its_rules() {
    let test_network = TestNetwork::open().await;
    let bridge = test_network.network.bridge().to_owned();
    let read = |path: String| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    let routed = || read(format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet"));
    for (file, value) in [("disable_ipv6", "1"), ("accept_ra", "0")] {
        // Missing in kernels without IPv6.
        let found = read(format!("/proc/sys/net/ipv6/conf/{bridge}/{file}"));
        assert!(found.is_none() || found.as_deref() == Some(value), "{file} is {found:?}");
    }
    assert_eq!(routed().as_deref(), Some("1"));
    // The same bridge, without rules.
    let plain = Network::open(NetworkSettings { nat: false, ..settings(&test_network) }).await.unwrap();
    assert_eq!((plain.bridge(), routed().as_deref()), (bridge.as_str(), Some("0")));
    let again = Network::open(settings(&test_network)).await.unwrap();
    assert_eq!((again.bridge(), routed().as_deref()), (bridge.as_str(), Some("1")));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn fifty_pods_attached_concurrently_get_different_addresses() {
    let mut test_network = TestNetwork::open().await;
    let mut pods = Vec::new();
    for n in 0..50 {
        pods.push((
            test_network.bare(&format!("pod-{n}")).await,
            published(Protocol::Tcp, 80, free_port(), ""),
        ));
    }
    let network = &test_network.network;
    let attached = futures::future::join_all(pods.iter().enumerate().map(async |(n, (pod, port))| {
        network.attach(&format!("pod-{n}"), &pod.netns(), std::slice::from_ref(port)).await.unwrap()[0]
    }));
    let addresses = attached.await;
    assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), 50);
    assert_eq!(test_network.ports().len(), 50);
    let (pod, port) = &pods[49];
    test_network.serve(pod, 80).await;
    let heard = call((Ipv4Addr::LOCALHOST, port.host_port)).await.unwrap();
    assert_eq!(heard, format!("pod-49 hears {}", test_network.network.gateway()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_host_port_with_a_host_ip_is_only_open_on_that_address() {
    let mut test_network = TestNetwork::open().await;
    let (local, outer) = (free_port(), free_port());
    let gateway = test_network.network.gateway().to_string();
    let ports =
        [published(Protocol::Tcp, 80, local, "127.0.0.1"), published(Protocol::Tcp, 80, outer, &gateway)];
    let pod = test_network.pod("pod", &ports).await;
    test_network.serve(&pod, 80).await;
    assert!(call((Ipv4Addr::LOCALHOST, local)).await.is_ok());
    assert!(call((test_network.network.gateway(), outer)).await.is_ok());
    assert!(call((Ipv4Addr::LOCALHOST, outer)).await.is_err());
    assert!(call((test_network.network.gateway(), local)).await.is_err());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn attach_and_detach_are_idempotent_and_addresses_are_not_reused_immediately() {
    let mut test_network = TestNetwork::open().await;
    let pod = test_network.pod("pod", &[]).await;
    let again = test_network.network.attach("pod", &pod.netns(), &[]).await.unwrap();
    assert_eq!(again, [pod.address], "the address is kept");
    test_network.serve(&pod, 80).await;
    assert!(call((pod.address, 80)).await.is_ok());

    test_network.network.detach("pod").await.unwrap();
    test_network.network.detach("pod").await.unwrap();
    test_network.network.detach("never-seen").await.unwrap();
    assert!(test_network.network.addresses("pod").is_empty());
    let next = test_network.pod("next", &[]).await;
    assert_ne!(next.address, pod.address);

    // The namespace is removed before the link.
    next.unpin().await;
    test_network.network.detach("next").await.unwrap();
    assert!(test_network.ports().is_empty());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn pods_keep_addresses_and_ports_when_the_network_is_reopened() {
    let mut test_network = TestNetwork::open().await;
    let port = free_port();
    let pod = test_network.pod("pod", &[published(Protocol::Tcp, 80, port, "")]).await;
    test_network.serve(&pod, 80).await;
    let again = Network::open(settings(&test_network)).await.unwrap();
    assert_eq!(
        (again.bridge(), again.subnet()),
        (test_network.network.bridge(), test_network.network.subnet())
    );
    assert_eq!(again.addresses("pod"), [pod.address]);
    assert!(call((Ipv4Addr::LOCALHOST, port)).await.is_ok());
    assert!(!again.close().await.unwrap(), "a pod is attached");
    assert_eq!(again.reconcile(&BTreeSet::from(["pod".to_owned()])).await.unwrap(), Vec::<String>::new());
    assert!(call((Ipv4Addr::LOCALHOST, port)).await.is_ok());
    assert_eq!(again.reconcile(&BTreeSet::new()).await.unwrap(), ["pod"]);
    assert!(call((Ipv4Addr::LOCALHOST, port)).await.is_err());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn close_removes_bridge_links_and_rules() {
    let mut test_network = TestNetwork::open().await;
    let bridge = test_network.network.bridge().to_owned();
    let pod = test_network.pod("pod", &[published(Protocol::Tcp, 80, free_port(), "")]).await;
    assert_eq!(test_network.ports().len(), 1);
    assert!(test_network::exists(&bridge) && test_network::tables().contains(&bridge));
    test_network.network.detach("pod").await.unwrap();
    pod.unpin().await;
    assert!(test_network.ports().is_empty());
    assert!(test_network.network.close().await.unwrap());
    assert!(!test_network::exists(&bridge) && !test_network::tables().contains(&bridge));
    assert!(test_network.network.close().await.unwrap(), "close is idempotent");
    // The network can be used again.
    test_network.pod("next", &[]).await;
    assert!(test_network::exists(&bridge) && test_network::tables().contains(&bridge));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn networks_opened_concurrently_get_different_subnets() {
    let test_networks = futures::future::join_all((0..6).map(|_| TestNetwork::open())).await;
    let subnets: BTreeSet<_> =
        test_networks.iter().map(|test_network| test_network.network.subnet().to_string()).collect();
    let bridges: BTreeSet<_> =
        test_networks.iter().map(|test_network| test_network.network.bridge().to_owned()).collect();
    assert_eq!((subnets.len(), bridges.len()), (6, 6), "{subnets:?}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_subnet_in_use_and_an_exhausted_subnet_are_reported() {
    let mut test_network = TestNetwork::open().await;
    let taken = test_network.network.subnet();
    let dir = tempfile::tempdir().unwrap();
    let settings = |subnet: &str| NetworkSettings {
        dir: dir.path().to_owned(),
        subnet: Some(subnet.parse().unwrap()),
        nat: true,
    };
    let error = Network::open(settings(&taken.to_string())).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("the subnet {taken} overlaps {taken}")), "{error}");

    // A small subnet from the documentation range.
    let small = format!("198.51.100.{}/29", (std::process::id() % 32) * 8);
    let full = TestNetwork::with(settings(&small)).await;
    for n in 0..5 {
        let pod = test_network.bare(&format!("pod-{n}")).await;
        full.network.attach(&format!("pod-{n}"), &pod.netns(), &[]).await.unwrap();
    }
    let pod = test_network.bare("pod-6").await;
    let error = full.network.attach("pod-6", &pod.netns(), &[]).await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("no free address in {small}: 5 pods have one; configure a larger subnet for more pods")
    );
    full.network.detach("pod-3").await.unwrap();
    assert_eq!(full.network.attach("pod-6", &pod.netns(), &[]).await.unwrap().len(), 1);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn without_nat_pods_reach_each_other_and_host_ports_are_rejected() {
    let mut test_network = TestNetwork::open().await;
    let plain =
        TestNetwork::with(NetworkSettings { dir: test_network.other_dir(), subnet: None, nat: false }).await;
    assert!(plain.network.nat_error().is_some_and(|why| why.contains("disabled")));
    assert!(!test_network::tables().contains(&plain.network.bridge().to_owned()));
    let pod = test_network.bare("pod").await;
    let error = plain
        .network
        .attach("pod", &pod.netns(), &[published(Protocol::Tcp, 80, 8080, "")])
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("host port 8080: disabled"), "{error}");
    assert_eq!(plain.network.attach("pod", &pod.netns(), &[]).await.unwrap().len(), 1);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn traffic_is_counted_from_the_pods_side() {
    let mut test_network = TestNetwork::open().await;
    let pod = test_network.pod("pod", &[]).await;
    let sent = 1_000_000;
    test_network.swallow(&pod, 80).await;
    let address = SocketAddr::from((test_network::v4(pod.address), 80));
    tokio::task::spawn_blocking(move || {
        use io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect_timeout(&address, LIMIT).unwrap();
        stream.write_all(&vec![7; sent]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    })
    .await
    .unwrap();
    let usage = &test_network.network.usage().await.unwrap()["pod"];
    assert_eq!(usage.name, "eth0");
    assert!(usage.received_bytes >= sent as u64, "{usage:?}");
    assert!(usage.sent_bytes > 0 && usage.sent_bytes < usage.received_bytes, "{usage:?}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn attaching_without_a_namespace_fails_and_leaves_nothing_behind() {
    let test_network = TestNetwork::open().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = test_network.network.attach("pod", file.path(), &[]).await.unwrap_err().to_string();
    assert!(error.contains("no namespace is mounted here"), "{error}");
    let error = test_network.network.attach("../pod", file.path(), &[]).await.unwrap_err().to_string();
    assert!(error.contains("no namespace") || error.contains("not a valid sandbox id"), "{error}");
    assert!(test_network.network.addresses("pod").is_empty() && test_network.ports().is_empty());
}
