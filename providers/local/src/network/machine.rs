//! What a node's network is on its machine: the bridge, its subnet, and what the kernel is told once.

use std::{
    fmt::Write as _,
    fs::{self, File},
    net::Ipv4Addr,
    path::Path,
    thread,
    time::Duration,
};

use aws_lc_rs::digest;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    Error, Inner, NetworkSettings, Subnet,
    addresses::{self, Addresses},
    link::{Known, Routing},
    nft, rules,
};

/// Where no link leads to the world.
const DEFAULT_MTU: u32 = 1500;
/// How often, and after which time, the choice of a subnet is tried while another node makes its own.
const TURNS: usize = 1000;
const TURN: Duration = Duration::from_millis(10);

/// What is remembered, so that pods keep their addresses.
#[derive(Serialize, Deserialize)]
struct Remembered {
    subnet: Subnet,
}

/// Makes or finds everything.
pub(super) fn open(settings: &NetworkSettings) -> Result<Inner, Error> {
    addresses::make_dir(&settings.dir)?;
    let place = fs::canonicalize(&settings.dir).map_err(|source| Error::File {
        doing: "find",
        path: settings.dir.clone(),
        source,
    })?;
    let name = name(&place);
    let routing = Routing::open().map_err(Error::kernel("open a socket for routing"))?;
    let mtu = mtu(&routing).map_err(Error::kernel("find the link to the world"))?;
    let subnet = {
        let _turn = turn()?;
        let subnet = settle(settings, &routing, &name)?;
        bridge(&routing, &name, subnet, mtu)?;
        subnet
    };
    let addresses = Addresses::open(&settings.dir, subnet)?;
    let limits = if settings.nat {
        forward(&name, subnet, &addresses).err()
    } else {
        Some("switched off in the configuration of this node's network".to_owned())
    };
    if let Some(why) = &limits {
        // First, because it needs the rules.
        route_loopback(&name, false)?;
        // Rules that an earlier run may have left, which could do more than this one.
        let _ = nft::remove(&name);
        tracing::warn!(bridge = %name, %why, "pods reach each other and this machine only, and have no ports of the host");
    }
    let obstacle = obstacle(&name);
    if let Some(why) = &obstacle {
        tracing::warn!(bridge = %name, %why, "another firewall may keep packets from pods");
    }
    Ok(Inner {
        bridge: name,
        subnet,
        mtu,
        limits,
        obstacle,
        addresses: Mutex::new(addresses),
        published: Mutex::new(0),
    })
}

/// The name of the bridge of a directory, which has to be written in one way.
pub(super) fn name(place: &Path) -> String {
    format!("vk{}", hash(&[place.as_os_str().as_encoded_bytes()], 8))
}

/// The index of the bridge, which is made with its address if it is not there.
pub(super) fn bridge(routing: &Routing, name: &str, subnet: Subnet, mtu: u32) -> Result<u32, Error> {
    let find = || routing.link(name).map_err(Error::kernel(format!("find the bridge {name}")));
    let failed = || Error::kernel(format!("make the bridge {name}"));
    let index = match find()? {
        Some(link) if link.kind != "bridge" => {
            return Err(Error::NoBridge { name: link.name, kind: link.kind });
        }
        Some(link) => link.index,
        None => {
            match routing.add_bridge(name, hardware(subnet.gateway()), mtu) {
                // Another sandbox of this node was faster.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(failed())?,
            }
            find()?.ok_or_else(|| failed()(std::io::ErrorKind::NotFound.into()))?.index
        }
    };
    // Before it is up and has ports: pods have no IPv6, and would reach by it what the machine's rules for IPv4 keep from them, or
    // announce themselves as the machine's router.
    for (file, value) in [("accept_ra", "0"), ("disable_ipv6", "1")] {
        set_if_there(&format!("/proc/sys/net/ipv6/conf/{name}/{file}"), value)?;
    }
    let has = routing.addresses(Some(index)).map_err(Error::kernel("list addresses"))?;
    if !has.iter().any(|(address, _)| *address == subnet.gateway()) {
        routing
            .add_address(index, subnet.gateway(), subnet)
            .map_err(Error::kernel(format!("give the bridge {name} its address")))?;
        routing.up(index).map_err(failed())?;
    }
    Ok(index)
}

/// Whether connections to ports of the host at 127.0.0.1 are led to pods. Only while there are rules: one of them keeps pods from using it.
pub(super) fn route_loopback(bridge: &str, on: bool) -> Result<(), Error> {
    set_if_there(&loopback(bridge), if on { "1" } else { "0" })
}

/// Whether they are.
pub(super) fn routes_loopback(bridge: &str) -> bool {
    fs::read_to_string(loopback(bridge)).is_ok_and(|text| text.trim() == "1")
}

fn loopback(bridge: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet")
}

/// What another firewall does to the packets of pods, with what to do about it, as far as nftables shows it. What `iptables-legacy` was told is not
/// shown there.
pub(super) fn obstacle(bridge: &str) -> Option<String> {
    // That they cannot be listed is told as a limit of our own rules.
    let chains = nft::dropping().unwrap_or_default();
    let foreign: Vec<String> = chains
        .into_iter()
        .filter(|chain| chain.table != bridge)
        .map(|chain| format!("{} {} {}", chain.family, chain.table, chain.name))
        .collect();
    if foreign.is_empty() {
        return None;
    }
    Some(format!(
        "another firewall drops what it does not know (chain {}): unless it has such rules already, let it accept the pods' bridge, with \
         `iptables -I FORWARD -i {bridge} -j ACCEPT` and `iptables -I FORWARD -o {bridge} -j ACCEPT` (DOCKER-USER in place of FORWARD where Docker \
         runs), or by adding {bridge} to a trusted zone of firewalld",
        foreign.join(", ")
    ))
}

/// A hardware address that follows from the address, so that nobody keeps a wrong one when an address comes to another pod.
pub(super) fn hardware(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    // A private one; CNI plugins use the same beginning.
    [0x0a, 0x58, a, b, c, d]
}

/// The first hexadecimal digits of a hash.
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

/// Lets the kernel forward, and writes the rules; or says why there are none.
fn forward(name: &str, subnet: Subnet, addresses: &Addresses) -> Result<(), String> {
    set("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| error.to_string())?;
    nft::replace(name, &rules::chains(name, subnet, addresses.attached())).map_err(|error| {
        format!("this kernel does not take nftables rules ({error}): load or build nf_tables, nft_nat, nft_masq and nft_fib_ipv4")
    })?;
    route_loopback(name, true).map_err(|error| error.to_string())
}

/// The subnet: configured, remembered or chosen.
fn settle(settings: &NetworkSettings, routing: &Routing, name: &str) -> Result<Subnet, Error> {
    let file = settings.dir.join("network.json");
    let remembered = addresses::read::<Remembered>(&file)?.map(|remembered| remembered.subnet);
    let existing = routing.link(name).map_err(Error::kernel(format!("find the bridge {name}")))?;
    if let (Some(bridge), Some(subnet)) = (&existing, remembered) {
        let addresses = routing.addresses(Some(bridge.index)).map_err(Error::kernel("list addresses"))?;
        let alive = addresses.iter().any(|(address, _)| *address == subnet.gateway());
        let used = Addresses::open(&settings.dir, subnet)?.attached().next().is_some();
        if alive && (used || settings.subnet.is_none_or(|wanted| wanted == subnet)) {
            if settings.subnet.is_some_and(|wanted| wanted != subnet) {
                tracing::warn!(bridge = %name, %subnet, "another subnet is configured, but pods have addresses of this one: it stays until they are gone");
            }
            return Ok(subnet);
        }
    }
    if let Some(bridge) = existing.filter(|link| link.kind == "bridge") {
        // It has another subnet, or none.
        routing.delete(bridge.index).map_err(Error::kernel(format!("remove the old bridge {name}")))?;
    }
    let taken = taken(routing).map_err(Error::kernel("list addresses and routes"))?;
    let clash = |subnet: Subnet| taken.iter().copied().find(|taken| taken.overlaps(subnet));
    let subnet = match (settings.subnet, remembered) {
        (Some(subnet), _) => match clash(subnet) {
            Some(other) => return Err(Error::Taken { subnet, other }),
            None => subnet,
        },
        (None, Some(subnet)) if clash(subnet).is_none() => subnet,
        (None, _) => Subnet::choose(&taken).ok_or(Error::NoSubnet)?,
    };
    addresses::write(&file, &Remembered { subnet })?;
    Ok(subnet)
}

/// The addresses that this machine knows of.
fn taken(routing: &Routing) -> std::io::Result<Vec<Subnet>> {
    let addresses = routing.addresses(None)?.into_iter().map(|(_, known)| known);
    Ok(addresses.chain(routing.routes()?).map(|Known { subnet, .. }| subnet).collect())
}

/// The size of packets on the way to the world.
fn mtu(routing: &Routing) -> std::io::Result<u32> {
    let Some(index) = routing.default_link()? else {
        return Ok(DEFAULT_MTU);
    };
    let links = routing.links()?;
    Ok(links.iter().find(|link| link.index == index).map_or(DEFAULT_MTU, |link| link.mtu))
}

/// Waits until no other node of this machine chooses. The lock is on the network namespace itself, which is what the choice is about.
fn turn() -> Result<Flock<File>, Error> {
    const PLACE: &str = "/proc/thread-self/ns/net";
    let failed = |source| Error::File { doing: "lock", path: PLACE.into(), source };
    let mut file = File::open(PLACE).map_err(failed)?;
    for _ in 0..TURNS {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, nix::errno::Errno::EWOULDBLOCK)) => file = back,
            Err((_, errno)) => return Err(failed(errno.into())),
        }
        thread::sleep(TURN);
    }
    Err(failed(std::io::ErrorKind::TimedOut.into()))
}

/// Changes a kernel setting; one that is so already is left alone, because it may be in a file system that is read-only.
fn set(path: &str, value: &str) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "set", path: path.into(), source };
    if fs::read_to_string(Path::new(path)).map_err(failed)?.trim() != value {
        fs::write(path, value).map_err(failed)?;
    }
    Ok(())
}

/// The same where the kernel may not have what is set.
fn set_if_there(path: &str, value: &str) -> Result<(), Error> {
    if Path::new(path).exists() { set(path, value) } else { Ok(()) }
}
