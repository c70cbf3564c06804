//! The bridge of a node: its name, its subnet, and the kernel settings it needs.

use std::{
    fmt::Write as _,
    fs::{self, File},
    net::Ipv4Addr,
    path::Path,
    thread,
    time::Duration,
};

use aws_lc_rs::digest;
use parking_lot::Mutex;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    Error, Inner, NetworkSettings, Subnet,
    ipam::{self, AddressPool},
    link::{KnownSubnet, RouteSocket},
    nft::{self, Chain, Family},
    rules,
};

/// If there is no default route.
const DEFAULT_MTU: u32 = 1500;
/// How often, and at which interval, the lock for choosing a subnet is tried.
const LOCK_ATTEMPTS: usize = 1000;
const LOCK_POLL: Duration = Duration::from_millis(10);

/// The stored subnet, so that pods keep their addresses.
#[derive(Serialize, Deserialize)]
struct StoredSubnet {
    subnet: Subnet,
}

/// Creates or finds the bridge and the rules.
pub(super) fn open(settings: &NetworkSettings) -> Result<Inner, Error> {
    ipam::create_dir(&settings.dir)?;
    let place = fs::canonicalize(&settings.dir).map_err(|source| Error::File {
        doing: "find",
        path: settings.dir.clone(),
        source,
    })?;
    let name = name(&place);
    let socket = RouteSocket::open().map_err(Error::kernel("open a netlink socket"))?;
    let mtu = mtu(&socket).map_err(Error::kernel("find the link of the default route"))?;
    let subnet = {
        let _lock = lock_namespace()?;
        let subnet = select_subnet(settings, &socket, &name)?;
        ensure(&socket, &name, subnet, mtu)?;
        subnet
    };
    let addresses = AddressPool::open(&settings.dir, subnet)?;
    let nat_error = if settings.nat {
        enable_nat(&name, subnet, &addresses).err()
    } else {
        Some("disabled in the configuration of this node's network".to_owned())
    };
    if let Some(why) = &nat_error {
        // First, because it is only safe while the rules exist.
        route_loopback(&name, false)?;
        // Rules of an earlier run with other settings.
        let _ = nft::remove(Family::Ip, &name);
        tracing::warn!(bridge = %name, %why, "pods only reach each other and this host, and have no host ports");
    }
    let source_check_error = test_source_check(&name).err();
    if let Some(why) = &source_check_error {
        tracing::warn!(bridge = %name, %why, "pods can send as other pods");
    }
    let firewall_conflict = firewall_conflict(&name);
    if let Some(why) = &firewall_conflict {
        tracing::warn!(bridge = %name, %why, "another firewall may drop pod traffic");
    }
    Ok(Inner {
        bridge: name,
        subnet,
        mtu,
        nat_error,
        source_check_error,
        firewall_conflict,
        addresses: Mutex::new(addresses),
        applied: Mutex::default(),
        checked_generation: Mutex::new(None),
    })
}

/// The name of the bridge for a directory, given by its canonical path.
pub(super) fn name(place: &Path) -> String {
    format!("vk{}", hash(&[place.as_os_str().as_encoded_bytes()], 8))
}

/// The index of the bridge, which is created with its address if it does not exist.
pub(super) fn ensure(socket: &RouteSocket, name: &str, subnet: Subnet, mtu: u32) -> Result<u32, Error> {
    let find = || socket.link(name).map_err(Error::kernel(format!("find the bridge {name}")));
    let failed = || Error::kernel(format!("create the bridge {name}"));
    let index = match find()? {
        Some(link) if link.kind != "bridge" => {
            return Err(Error::NotABridge { name: link.name, kind: link.kind });
        }
        Some(link) => link.index,
        None => {
            match socket.add_bridge(name, mac_address(subnet.gateway()), mtu) {
                // Another attach of this node was faster.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(failed())?,
            }
            find()?.ok_or_else(|| failed()(std::io::ErrorKind::NotFound.into()))?.index
        }
    };
    // Before it is up and has ports: pods have no IPv6. With it they could bypass the host's IPv4 rules, or announce
    // themselves as routers to the host.
    for (file, value) in [("accept_ra", "0"), ("disable_ipv6", "1")] {
        set_sysctl_if_exists(&format!("/proc/sys/net/ipv6/conf/{name}/{file}"), value)?;
    }
    let has = socket.addresses(Some(index)).map_err(Error::kernel("list addresses"))?;
    if !has.iter().any(|(address, _)| *address == subnet.gateway()) {
        socket
            .add_address(index, subnet.gateway(), subnet)
            .map_err(Error::kernel(format!("set the address of the bridge {name}")))?;
        socket.set_up(index).map_err(failed())?;
    }
    Ok(index)
}

/// Sets whether connections to host ports at 127.0.0.1 are forwarded to pods. Only while the rules exist: one of them
/// prevents pods from abusing it.
pub(super) fn route_loopback(bridge: &str, on: bool) -> Result<(), Error> {
    set_sysctl_if_exists(&loopback(bridge), if on { "1" } else { "0" })
}

/// Whether that is set.
pub(super) fn routes_loopback(bridge: &str) -> bool {
    fs::read_to_string(loopback(bridge)).is_ok_and(|text| text.trim() == "1")
}

fn loopback(bridge: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet")
}

/// Firewall chains that may drop pod traffic, with the remedy. Only those that nftables shows; `iptables-legacy` rules
/// are not among them.
pub(super) fn firewall_conflict(bridge: &str) -> Option<String> {
    // If they cannot be listed, our own rules fail too, which is reported.
    let chains = nft::dropping_chains().unwrap_or_default();
    let foreign: Vec<String> = chains
        .into_iter()
        .filter(|chain| chain.table != bridge)
        .map(|chain| format!("{} {} {}", chain.family, chain.table, chain.name))
        .collect();
    if foreign.is_empty() {
        return None;
    }
    Some(format!(
        "another firewall drops traffic that it does not know (chain {}): unless it has such rules already, let it accept the pods' bridge, with \
         `iptables -I FORWARD -i {bridge} -j ACCEPT` and `iptables -I FORWARD -o {bridge} -j ACCEPT` (DOCKER-USER instead of FORWARD with \
         Docker), or by adding {bridge} to a trusted zone of firewalld",
        foreign.join(", ")
    ))
}

/// A MAC address derived from the IP address, so that ARP caches stay valid when an address is reused.
pub(super) fn mac_address(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    // A locally administered address with the prefix that CNI plugins use.
    [0x0a, 0x58, a, b, c, d]
}

/// The first hex digits of a hash.
pub(super) fn hash(parts: &[&[u8]], digits: usize) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
        context.update(&[0]);
    }
    let mut text = context.finish().as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    text.truncate(digits);
    text
}

/// Enables forwarding and writes the rules, or returns why that is not possible.
fn enable_nat(name: &str, subnet: Subnet, addresses: &AddressPool) -> Result<(), String> {
    set_sysctl("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| error.to_string())?;
    nft::replace(Family::Ip, name, &rules::chains(name, subnet, addresses.attached())).map_err(|error| {
        format!("this kernel does not accept nftables rules ({error}): load or build nf_tables, nft_nat, nft_masq and nft_fib_ipv4")
    })?;
    route_loopback(name, true).map_err(|error| error.to_string())
}

/// Checks that the kernel can restrict what an interface receives, or returns why it cannot.
fn test_source_check(name: &str) -> Result<(), String> {
    // On the bridge itself, which exists; it is removed at once.
    let chain = rules::source_check(name, Ipv4Addr::UNSPECIFIED, [0; 6]);
    let chain = Chain { rules: Vec::new(), ..chain };
    let tested = nft::replace(Family::Netdev, name, &[chain]);
    tested.and_then(|()| nft::remove(Family::Netdev, name)).map_err(|error| {
        format!(
            "pods can use the addresses of other pods: this kernel does not accept nftables rules for interfaces ({error}): load or build \
             nf_tables with CONFIG_NF_TABLES_NETDEV"
        )
    })
}

/// The subnet: the configured one, the stored one or a new one.
fn select_subnet(settings: &NetworkSettings, socket: &RouteSocket, name: &str) -> Result<Subnet, Error> {
    let file = settings.dir.join("network.json");
    let remembered = ipam::read::<StoredSubnet>(&file)?.map(|remembered| remembered.subnet);
    let existing = socket.link(name).map_err(Error::kernel(format!("find the bridge {name}")))?;
    if let (Some(bridge), Some(subnet)) = (&existing, remembered) {
        let addresses = socket.addresses(Some(bridge.index)).map_err(Error::kernel("list addresses"))?;
        let alive = addresses.iter().any(|(address, _)| *address == subnet.gateway());
        let used = AddressPool::open(&settings.dir, subnet)?.attached().next().is_some();
        if alive && (used || settings.subnet.is_none_or(|wanted| wanted == subnet)) {
            if settings.subnet.is_some_and(|wanted| wanted != subnet) {
                tracing::warn!(bridge = %name, %subnet, "another subnet is configured, but pods still use this one: it is kept until they are gone");
            }
            return Ok(subnet);
        }
    }
    if let Some(bridge) = existing.filter(|link| link.kind == "bridge") {
        // It has another subnet, or no address.
        socket.delete(bridge.index).map_err(Error::kernel(format!("remove the old bridge {name}")))?;
    }
    let in_use = subnets_in_use(socket).map_err(Error::kernel("list addresses and routes"))?;
    let clash = |subnet: Subnet| in_use.iter().copied().find(|other| other.overlaps(subnet));
    let subnet = match (settings.subnet, remembered) {
        (Some(subnet), _) => match clash(subnet) {
            Some(other) => return Err(Error::SubnetInUse { subnet, other }),
            None => subnet,
        },
        (None, Some(subnet)) if clash(subnet).is_none() => subnet,
        (None, _) => Subnet::choose(&in_use).ok_or(Error::NoSubnet)?,
    };
    ipam::write(&file, &StoredSubnet { subnet })?;
    Ok(subnet)
}

/// The subnets in use on this host.
fn subnets_in_use(socket: &RouteSocket) -> std::io::Result<Vec<Subnet>> {
    let addresses = socket.addresses(None)?.into_iter().map(|(_, known)| known);
    Ok(addresses.chain(socket.routes()?).map(|KnownSubnet { subnet, .. }| subnet).collect())
}

/// The MTU of the link of the default route.
fn mtu(socket: &RouteSocket) -> std::io::Result<u32> {
    let Some(index) = socket.default_link()? else {
        return Ok(DEFAULT_MTU);
    };
    let links = socket.links()?;
    Ok(links.iter().find(|link| link.index == index).map_or(DEFAULT_MTU, |link| link.mtu))
}

/// Waits until no other node of this host is choosing a subnet. The lock is on the network namespace itself.
fn lock_namespace() -> Result<File, Error> {
    const PLACE: &str = "/proc/thread-self/ns/net";
    let failed = |source| Error::File { doing: "lock", path: PLACE.into(), source };
    let file = File::open(PLACE).map_err(failed)?;
    for _ in 0..LOCK_ATTEMPTS {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        thread::sleep(LOCK_POLL);
    }
    Err(failed(std::io::ErrorKind::TimedOut.into()))
}

/// Sets a sysctl. It is not written if it has the value already, because `/proc/sys` may be read-only.
fn set_sysctl(path: &str, value: &str) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "set", path: path.into(), source };
    if fs::read_to_string(Path::new(path)).map_err(failed)?.trim() != value {
        fs::write(path, value).map_err(failed)?;
    }
    Ok(())
}

/// Like [`set_sysctl`], for sysctls that the kernel may not have.
fn set_sysctl_if_exists(path: &str, value: &str) -> Result<(), Error> {
    if Path::new(path).exists() { set_sysctl(path, value) } else { Ok(()) }
}
