//! Networks of pods in the kernel, with connections through them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod lab;
mod namespace;

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
};

use vk_pod_engine::backend::{PortMapping, Protocol};
use vk_provider_local::{
    namespace::inside,
    network::{Network, NetworkSettings},
};

use self::lab::{LIMIT, Lab, call, free_port};

fn published(protocol: Protocol, container_port: u16, host_port: u16, host_ip: &str) -> PortMapping {
    PortMapping { protocol, container_port, host_port, host_ip: host_ip.to_owned() }
}

fn settings(lab: &Lab) -> NetworkSettings {
    NetworkSettings { dir: lab.dir(), subnet: None, nat: true }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn pods_reach_each_other_by_address_and_share_a_port_number() {
    let mut lab = Lab::open().await;
    let a = lab.pod("a", &[]).await;
    let b = lab.pod("b", &[]).await;
    assert_ne!(a.address, b.address);
    lab.serve(&a, 80).await;
    lab.serve(&b, 80).await;

    assert_eq!(a.call((b.address, 80)).await.unwrap(), format!("b hears {}", a.address));
    assert_eq!(b.call((a.address, 80)).await.unwrap(), format!("a hears {}", b.address));
    // To itself by its own address.
    assert_eq!(a.call((a.address, 80)).await.unwrap(), format!("a hears {}", a.address));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_host_reaches_a_pod_and_a_pod_the_host_but_not_its_loopback() {
    let mut lab = Lab::open().await;
    let mut other = Lab::open().await;
    let pod = lab.pod("pod", &[]).await;
    lab.serve(&pod, 80).await;
    assert_eq!(call((pod.address, 80)).await.unwrap(), format!("pod hears {}", lab.network.gateway()));

    // A listener on everything is reached at each address of the host.
    let everything = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = everything.local_addr().unwrap().port();
    lab.answer("host", everything);
    for address in [lab.network.gateway(), other.network.gateway()] {
        assert_eq!(pod.call((address, port)).await.unwrap(), format!("host hears {}", pod.address));
    }

    let hidden = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hidden.local_addr().unwrap().port();
    other.answer("loopback", hidden);
    assert_eq!(call((Ipv4Addr::LOCALHOST, port)).await.unwrap(), "loopback hears 127.0.0.1");
    for address in [Ipv4Addr::LOCALHOST, lab.network.gateway()] {
        let error = pod.call((address, port)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}: {error}");
    }
}

/// The other node's pod is the world: it sees the host's address on its side, and not the pod's.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_pod_reaches_the_world_in_the_hosts_name() {
    let mut lab = Lab::open().await;
    let mut world = Lab::open().await;
    let pod = lab.pod("pod", &[]).await;
    let far = world.pod("far", &[]).await;
    world.serve(&far, 80).await;
    assert_eq!(pod.call((far.address, 80)).await.unwrap(), format!("far hears {}", world.network.gateway()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_port_of_the_host_leads_to_the_pod_from_everywhere_until_it_is_detached() {
    let mut lab = Lab::open().await;
    let mut world = Lab::open().await;
    let port = free_port();
    let pod = lab.pod("pod", &[published(Protocol::Tcp, 80, port, "")]).await;
    let neighbour = lab.pod("neighbour", &[]).await;
    let far = world.pod("far", &[]).await;
    lab.serve(&pod, 80).await;
    let gateway = lab.network.gateway();

    // From the host, by its addresses and by 127.0.0.1.
    for address in [gateway, world.network.gateway(), Ipv4Addr::LOCALHOST] {
        assert!(call((address, port)).await.unwrap().starts_with("pod hears "), "{address}");
    }
    // From elsewhere: the source is kept.
    let heard = far.call((world.network.gateway(), port)).await.unwrap();
    assert_eq!(heard, format!("pod hears {gateway}"), "the other node changes the source of its pods");
    // From a pod of the same bridge, and from the pod itself.
    assert_eq!(neighbour.call((gateway, port)).await.unwrap(), format!("pod hears {gateway}"));
    assert_eq!(pod.call((gateway, port)).await.unwrap(), format!("pod hears {gateway}"));

    lab.network.detach("pod").await.unwrap();
    for address in [gateway, Ipv4Addr::LOCALHOST] {
        let error = call((address, port)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}: {error}");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_udp_port_of_the_host_leads_to_the_pod() {
    let mut lab = Lab::open().await;
    let port = free_port();
    let pod = lab.pod("pod", &[published(Protocol::Udp, 53, port, "")]).await;
    lab.echo(&pod, 53).await;
    for address in [lab.network.gateway(), Ipv4Addr::LOCALHOST] {
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
    // It is no TCP port.
    assert_eq!(call((Ipv4Addr::LOCALHOST, port)).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

/// The client does not pause, so that the kernel has no reason to forget who it spoke to.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_client_of_a_udp_port_finds_the_next_pod_that_has_it() {
    let mut lab = Lab::open().await;
    let port = free_port();
    let ports = [published(Protocol::Udp, 53, port, "")];
    let client = UdpSocket::bind("0.0.0.0:0").unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    // Before there is any pod.
    client.send_to(b"?", (Ipv4Addr::LOCALHOST, port)).unwrap();
    for name in ["first", "second"] {
        let pod = lab.pod(name, &ports).await;
        lab.echo(&pod, 53).await;
        client.send_to(name.as_bytes(), (Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut buffer = [0; 16];
        let length = client.recv(&mut buffer).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&buffer[..length], name.as_bytes());
        lab.network.detach(name).await.unwrap();
    }
}

/// A pod that may change its own network sends packets for 127.0.0.1 to the host, which takes such packets from the bridge.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_pod_with_power_over_its_network_does_not_reach_the_hosts_loopback_either() {
    let mut lab = Lab::open().await;
    let pod = lab.pod("pod", &[]).await;
    let hidden = UdpSocket::bind("127.0.0.1:0").unwrap();
    let open = UdpSocket::bind("0.0.0.0:0").unwrap();
    let targets = [
        (Ipv4Addr::LOCALHOST, hidden.local_addr().unwrap().port()),
        (lab.network.gateway(), open.local_addr().unwrap().port()),
    ];
    pod.tune("net.ipv4.conf.eth0.route_localnet", "1").await;
    let netns = pod.netns();
    let sent = inside(&netns, move || {
        use nix::sys::socket::{setsockopt, sockopt::BindToDevice};
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        // So that the address is not the pod's own.
        setsockopt(&socket, BindToDevice, &"eth0".into())?;
        targets.into_iter().try_for_each(|target| socket.send_to(b"hello", target).map(drop))
    });
    sent.await.unwrap().unwrap();
    // What was sent second has come, so what was sent first has been dealt with.
    open.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(open.recv(&mut [0; 16]).unwrap(), 5);
    hidden.set_nonblocking(true).unwrap();
    assert_eq!(hidden.recv(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_bridge_speaks_no_ipv6_and_routes_the_loopback_only_behind_its_rules() {
    let lab = Lab::open().await;
    let bridge = lab.network.bridge().to_owned();
    let read = |path: String| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    let routed = || read(format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet"));
    for (file, value) in [("disable_ipv6", "1"), ("accept_ra", "0")] {
        // A kernel without IPv6 has no such file.
        let found = read(format!("/proc/sys/net/ipv6/conf/{bridge}/{file}"));
        assert!(found.is_none() || found.as_deref() == Some(value), "{file} is {found:?}");
    }
    assert_eq!(routed().as_deref(), Some("1"));
    // The same bridge for a node that has no rules any more.
    let plain = Network::open(NetworkSettings { nat: false, ..settings(&lab) }).await.unwrap();
    assert_eq!((plain.bridge(), routed().as_deref()), (bridge.as_str(), Some("0")));
    let again = Network::open(settings(&lab)).await.unwrap();
    assert_eq!((again.bridge(), routed().as_deref()), (bridge.as_str(), Some("1")));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn fifty_pods_at_once_have_an_address_each() {
    let mut lab = Lab::open().await;
    let mut pods = Vec::new();
    for n in 0..50 {
        pods.push((lab.bare(&format!("pod-{n}")).await, published(Protocol::Tcp, 80, free_port(), "")));
    }
    let network = &lab.network;
    let attached = futures::future::join_all(pods.iter().enumerate().map(async |(n, (pod, port))| {
        network.attach(&format!("pod-{n}"), &pod.netns(), std::slice::from_ref(port)).await.unwrap()[0]
    }));
    let addresses = attached.await;
    assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), 50);
    assert_eq!(lab.ports().len(), 50);
    let (pod, port) = &pods[49];
    lab.serve(pod, 80).await;
    let heard = call((Ipv4Addr::LOCALHOST, port.host_port)).await.unwrap();
    assert_eq!(heard, format!("pod-49 hears {}", lab.network.gateway()));
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_port_of_one_address_of_the_host_is_not_one_of_the_others() {
    let mut lab = Lab::open().await;
    let (local, outer) = (free_port(), free_port());
    let gateway = lab.network.gateway().to_string();
    let ports =
        [published(Protocol::Tcp, 80, local, "127.0.0.1"), published(Protocol::Tcp, 80, outer, &gateway)];
    let pod = lab.pod("pod", &ports).await;
    lab.serve(&pod, 80).await;
    assert!(call((Ipv4Addr::LOCALHOST, local)).await.is_ok());
    assert!(call((lab.network.gateway(), outer)).await.is_ok());
    assert!(call((Ipv4Addr::LOCALHOST, outer)).await.is_err());
    assert!(call((lab.network.gateway(), local)).await.is_err());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn attach_and_detach_may_be_repeated_and_an_address_is_not_reused_at_once() {
    let mut lab = Lab::open().await;
    let pod = lab.pod("pod", &[]).await;
    let again = lab.network.attach("pod", &pod.netns(), &[]).await.unwrap();
    assert_eq!(again, [pod.address], "the same one");
    lab.serve(&pod, 80).await;
    assert!(call((pod.address, 80)).await.is_ok());

    lab.network.detach("pod").await.unwrap();
    lab.network.detach("pod").await.unwrap();
    lab.network.detach("never-seen").await.unwrap();
    assert!(lab.network.addresses("pod").is_empty());
    let next = lab.pod("next", &[]).await;
    assert_ne!(next.address, pod.address);

    // The namespace is gone before the link.
    next.unpin().await;
    lab.network.detach("next").await.unwrap();
    assert!(lab.ports().is_empty());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn pods_keep_address_and_ports_when_the_network_is_opened_again() {
    let mut lab = Lab::open().await;
    let port = free_port();
    let pod = lab.pod("pod", &[published(Protocol::Tcp, 80, port, "")]).await;
    lab.serve(&pod, 80).await;
    let again = Network::open(settings(&lab)).await.unwrap();
    assert_eq!((again.bridge(), again.subnet()), (lab.network.bridge(), lab.network.subnet()));
    assert_eq!(again.addresses("pod"), [pod.address]);
    assert!(call((Ipv4Addr::LOCALHOST, port)).await.is_ok());
    assert!(!again.close().await.unwrap(), "somebody is attached");
    assert_eq!(again.reconcile(&BTreeSet::from(["pod".to_owned()])).await.unwrap(), Vec::<String>::new());
    assert!(call((Ipv4Addr::LOCALHOST, port)).await.is_ok());
    assert_eq!(again.reconcile(&BTreeSet::new()).await.unwrap(), ["pod"]);
    assert!(call((Ipv4Addr::LOCALHOST, port)).await.is_err());
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn closing_leaves_neither_bridge_nor_link_nor_rule() {
    let mut lab = Lab::open().await;
    let bridge = lab.network.bridge().to_owned();
    let pod = lab.pod("pod", &[published(Protocol::Tcp, 80, free_port(), "")]).await;
    assert_eq!(lab.ports().len(), 1);
    assert!(lab::exists(&bridge) && lab::tables().contains(&bridge));
    lab.network.detach("pod").await.unwrap();
    pod.unpin().await;
    assert!(lab.ports().is_empty());
    assert!(lab.network.close().await.unwrap());
    assert!(!lab::exists(&bridge) && !lab::tables().contains(&bridge));
    assert!(lab.network.close().await.unwrap(), "may be repeated");
    // And used again.
    lab.pod("next", &[]).await;
    assert!(lab::exists(&bridge) && lab::tables().contains(&bridge));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn networks_that_open_at_the_same_time_have_subnets_of_their_own() {
    let labs = futures::future::join_all((0..6).map(|_| Lab::open())).await;
    let subnets: BTreeSet<_> = labs.iter().map(|lab| lab.network.subnet().to_string()).collect();
    let bridges: BTreeSet<_> = labs.iter().map(|lab| lab.network.bridge().to_owned()).collect();
    assert_eq!((subnets.len(), bridges.len()), (6, 6), "{subnets:?}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_subnet_that_the_machine_has_already_is_refused_and_a_full_one_says_so() {
    let mut lab = Lab::open().await;
    let taken = lab.network.subnet();
    let dir = tempfile::tempdir().unwrap();
    let settings = |subnet: &str| NetworkSettings {
        dir: dir.path().to_owned(),
        subnet: Some(subnet.parse().unwrap()),
        nat: true,
    };
    let error = Network::open(settings(&taken.to_string())).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("the subnet {taken} overlaps {taken}")), "{error}");

    // A small one of its own, out of what is for documentation.
    let small = format!("198.51.100.{}/29", (std::process::id() % 32) * 8);
    let full = Lab::with(settings(&small)).await;
    for n in 0..5 {
        let pod = lab.bare(&format!("pod-{n}")).await;
        full.network.attach(&format!("pod-{n}"), &pod.netns(), &[]).await.unwrap();
    }
    let pod = lab.bare("pod-6").await;
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
async fn without_rules_pods_have_each_other_and_host_ports_are_refused_with_the_reason() {
    let mut lab = Lab::open().await;
    let plain = Lab::with(NetworkSettings { dir: lab.other_dir(), subnet: None, nat: false }).await;
    assert!(plain.network.limits().is_some_and(|why| why.contains("switched off")));
    assert!(!lab::tables().contains(&plain.network.bridge().to_owned()));
    let pod = lab.bare("pod").await;
    let error = plain
        .network
        .attach("pod", &pod.netns(), &[published(Protocol::Tcp, 80, 8080, "")])
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("host port 8080: switched off"), "{error}");
    assert_eq!(plain.network.attach("pod", &pod.netns(), &[]).await.unwrap().len(), 1);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_goes_through_an_interface_is_counted_from_the_pods_side() {
    let mut lab = Lab::open().await;
    let pod = lab.pod("pod", &[]).await;
    let sent = 1_000_000;
    lab.swallow(&pod, 80).await;
    let address = SocketAddr::from((lab::v4(pod.address), 80));
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
    let usage = &lab.network.usage().await.unwrap()["pod"];
    assert_eq!(usage.name, "eth0");
    assert!(usage.received_bytes >= sent as u64, "{usage:?}");
    assert!(usage.sent_bytes > 0 && usage.sent_bytes < usage.received_bytes, "{usage:?}");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_sandbox_without_a_namespace_is_refused_and_leaves_nothing() {
    let lab = Lab::open().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = lab.network.attach("pod", file.path(), &[]).await.unwrap_err().to_string();
    assert!(error.contains("no namespace is mounted here"), "{error}");
    let error = lab.network.attach("../pod", file.path(), &[]).await.unwrap_err().to_string();
    assert!(error.contains("no namespace") || error.contains("no id of a sandbox"), "{error}");
    assert!(lab.network.addresses("pod").is_empty() && lab.ports().is_empty());
}
