//! A network of its own for each pod.
//!
//! A node has a bridge with an address, and each pod a pair of links: one end is a port of the bridge, the other one is `eth0` in the pod. Pods reach
//! each other and the host by their addresses, the world in the host's name, and ports of the host lead to pods. IPv4 only.
//!
//! All of it is the kernel's; what must outlive this process is in files of the node's directory, written before the kernel is told, so that after a
//! crash anywhere [`Network::reconcile`] finds what belongs to nobody. Nothing runs in the background.

mod addresses;
mod conntrack;
mod error;
pub(crate) mod link;
mod machine;
mod netlink;
pub mod nft;
mod rules;
mod subnet;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use vk_pod_engine::backend::{InterfaceUsage, PortMapping, Protocol};

use self::{
    addresses::{Addresses, Attached},
    link::{Pair, Routing},
};
pub use self::{
    error::Error,
    subnet::{Subnet, SubnetError},
};
use crate::namespace;

/// The pod's end of the pair.
const INTERFACE: &str = "eth0";

/// What a node's network is to be.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// Where its files are; made if missing. It also tells this network from others on the machine.
    pub dir: PathBuf,
    /// The pods' addresses; without it, a subnet is chosen that nothing else on the machine uses.
    pub subnet: Option<Subnet>,
    /// Whether pods reach the world and have ports of the host.
    pub nat: bool,
}

/// A node's network.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bridge: String,
    subnet: Subnet,
    mtu: u32,
    limits: Option<String>,
    obstacle: Option<String>,
    addresses: Mutex<Addresses>,
    /// The version of the addresses that the rules are of. Taken before the addresses where both are.
    published: Mutex<u64>,
}

/// The steps of attaching a sandbox, of which each may be the last one before a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// It has an address in a file.
    Reserved,
    /// The pair of links is there.
    Paired,
    /// What it sends may come back to it.
    Hairpinned,
    /// The pod's end has its address.
    Addressed,
    /// The pod has a default route.
    Routed,
    /// Its ports lead to it.
    Published,
}

// === impl Network ===

impl Network {
    /// Makes the bridge and the rules, or finds those that are there.
    ///
    /// An error says why this machine gives no bridge. Forwarding of IPv4 is switched on for the machine, and stays on: others may rely on it meanwhile.
    pub async fn open(settings: NetworkSettings) -> Result<Self, Error> {
        blocking(move || machine::open(&settings).map(|inner| Self(Arc::new(inner)))).await
    }

    /// The bridge's name, which is also the name of the table with the rules.
    pub fn bridge(&self) -> &str {
        &self.0.bridge
    }

    /// The pods' addresses.
    pub fn subnet(&self) -> Subnet {
        self.0.subnet
    }

    /// The host's address towards the pods.
    pub fn gateway(&self) -> Ipv4Addr {
        self.0.subnet.gateway()
    }

    /// Why pods reach neither the world nor have ports of the host, if so.
    pub fn limits(&self) -> Option<&str> {
        self.0.limits.as_deref()
    }

    /// What another firewall of this machine may do to the packets of pods, and the remedy, if it was found when this network was opened.
    pub fn obstacle(&self) -> Option<&str> {
        self.0.obstacle.as_deref()
    }

    /// Gives a sandbox an interface and an address. May be repeated, also after a crash in the middle of it; after an error nothing is left.
    pub async fn attach(
        &self,
        sandbox: &str,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, Error> {
        let (inner, sandbox, netns, ports) =
            (self.0.clone(), sandbox.to_owned(), netns.to_owned(), ports.to_vec());
        blocking(move || {
            let attached = inner.attach(&sandbox, &netns, &ports, Step::Published);
            if attached.is_err() {
                // The error to tell is the first one; what is left, `reconcile` finds.
                if let Err(error) = inner.detach(&sandbox) {
                    tracing::warn!(%sandbox, %error, "a sandbox that could not be attached could not be detached either");
                }
            }
            attached.map(|address| vec![IpAddr::V4(address)])
        })
        .await
    }

    /// The addresses of a sandbox; none if it is not attached.
    pub fn addresses(&self, sandbox: &str) -> Vec<IpAddr> {
        self.0
            .addresses
            .lock()
            .get(sandbox)
            .map(|attached| IpAddr::V4(attached.address))
            .into_iter()
            .collect()
    }

    /// Takes a sandbox off the network. May be repeated; that the namespace or the link is gone already is no matter.
    pub async fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let (inner, sandbox) = (self.0.clone(), sandbox.to_owned());
        blocking(move || inner.detach(&sandbox)).await
    }

    /// Detaches every sandbox but these, removes links of ours that no sandbox has, and writes the rules anew. Returns the detached ones.
    pub async fn reconcile(&self, live: &BTreeSet<String>) -> Result<Vec<String>, Error> {
        let (inner, live) = (self.0.clone(), live.clone());
        blocking(move || inner.reconcile(&live)).await
    }

    /// Removes the bridge and the rules if no sandbox is attached, and says whether it did.
    pub async fn close(&self) -> Result<bool, Error> {
        let inner = self.0.clone();
        blocking(move || inner.close()).await
    }

    /// What has gone through the interface of each sandbox.
    pub async fn usage(&self) -> Result<BTreeMap<String, InterfaceUsage>, Error> {
        let inner = self.0.clone();
        blocking(move || inner.usage()).await
    }
}

/// The name of the bridge of the node with this directory of its network, which is to be an absolute path without links.
pub fn bridge(dir: &Path) -> String {
    machine::name(dir)
}

/// What another firewall of this machine may do to the packets of pods of the node with this directory of its network, and the remedy.
pub fn obstacle(dir: &Path) -> Option<String> {
    // Before the node was ever started its bridge has no name yet.
    let bridge =
        std::fs::canonicalize(dir).map_or_else(|_| "BRIDGE".to_owned(), |place| machine::name(&place));
    machine::obstacle(&bridge)
}

/// Talks to the kernel where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::Panicked("the network's thread")))
}

/// Lets clients of UDP ports find the pod that has the port now. Without it they do so after a pause, so it is no reason to fail.
fn forget(ports: &[PortMapping]) {
    let udp: Vec<u16> =
        ports.iter().filter(|port| port.protocol == Protocol::Udp).map(|port| port.host_port).collect();
    if let Err(error) = conntrack::forget_udp(&udp) {
        tracing::warn!(ports = ?udp, %error, "connections to UDP ports of the host could not be forgotten");
    }
}

// === impl Inner ===

impl Inner {
    /// The host's end of a sandbox's pair.
    fn host_end(&self, sandbox: &str) -> String {
        format!("ve{}", machine::hash(&[self.bridge.as_bytes(), sandbox.as_bytes()], 12))
    }

    fn attach(
        &self,
        sandbox: &str,
        netns: &Path,
        ports: &[PortMapping],
        until: Step,
    ) -> Result<Ipv4Addr, Error> {
        let ports = rules::ports(ports, self.limits.as_deref())?;
        let namespace = namespace::open(netns).map_err(Error::kernel(format!("attach sandbox {sandbox}")))?;
        let (attached, changed) = {
            let mut addresses = self.addresses.lock();
            let before = addresses.get(sandbox).map(|attached| attached.ports.clone()).unwrap_or_default();
            (addresses.reserve(sandbox, &ports)?, before != ports)
        };
        let address = attached.address;
        if until == Step::Reserved {
            return Ok(address);
        }

        let routing = Routing::open().map_err(Error::kernel("open a socket for routing"))?;
        let bridge = machine::bridge(&routing, &self.bridge, self.subnet, self.mtu)?;
        let inside = namespace::inside_blocking(&namespace, Routing::open)
            .and_then(|opened| opened)
            .map_err(Error::kernel(format!("open a socket in {}", netns.display())))?;
        let name = self.host_end(sandbox);
        let failed = |doing: &str| Error::kernel(format!("{doing} of sandbox {sandbox}"));

        let host =
            self.pair(&routing, &inside, &namespace, &attached, bridge).map_err(failed("make the links"))?;
        if until == Step::Paired {
            return Ok(address);
        }
        routing.hairpin(host).map_err(failed(&format!("set up the port {name}")))?;
        if until == Step::Hairpinned {
            return Ok(address);
        }
        let eth0 = inside
            .link(INTERFACE)
            .and_then(|link| link.ok_or_else(|| std::io::ErrorKind::NotFound.into()))
            .map_err(failed("find eth0"))?;
        inside.up(eth0.index).map_err(failed("switch eth0 on"))?;
        inside.add_address(eth0.index, address, self.subnet).map_err(failed("set the address"))?;
        if until == Step::Addressed {
            return Ok(address);
        }
        inside.add_default(eth0.index, self.subnet.gateway()).map_err(failed("set the route"))?;
        if until == Step::Routed {
            return Ok(address);
        }
        // Version 0 is that of no rules at all: the network was closed.
        let none = {
            let mut published = self.published.lock();
            // A bridge that had to be made anew knows nothing of them either.
            if self.limits.is_none() && !machine::routes_loopback(&self.bridge) {
                *published = 0;
            }
            *published == 0
        };
        if changed || none || !ports.is_empty() {
            self.publish()?;
            forget(&ports);
        }
        inside.wait(INTERFACE).map_err(failed("use eth0"))?;
        routing.wait(&name).map_err(failed("use the links"))?;
        // Last, because it comes up with its first port.
        routing.wait(&self.bridge).map_err(failed("use the bridge"))?;
        Ok(address)
    }

    /// Makes the pair, or finds the one that is there and whole. The index of the host's end.
    fn pair(
        &self,
        routing: &Routing,
        inside: &Routing,
        namespace: &std::fs::File,
        attached: &Attached,
        bridge: u32,
    ) -> std::io::Result<u32> {
        let name = self.host_end(&attached.sandbox);
        let hardware = machine::hardware(attached.address);
        if let Some(host) = routing.link(&name)? {
            let peer = inside.link(INTERFACE)?;
            if host.master == Some(bridge) && peer.is_some_and(|peer| peer.hardware == hardware) {
                return Ok(host.index);
            }
            routing.delete(host.index)?;
        }
        let namespace = namespace.as_fd();
        routing.add_pair(&Pair {
            name: &name,
            bridge,
            mtu: self.mtu,
            peer: INTERFACE,
            hardware,
            namespace,
        })?;
        let made = routing.link(&name)?;
        made.map(|link| link.index).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let routing = Routing::open().map_err(Error::kernel("open a socket for routing"))?;
        let name = self.host_end(sandbox);
        if let Some(link) = routing.link(&name).map_err(Error::kernel(format!("find the link {name}")))? {
            // The pod's end goes with it.
            routing.delete(link.index).map_err(Error::kernel(format!("remove the link {name}")))?;
        }
        let ports = self.addresses.lock().close_ports(sandbox);
        if !ports.is_empty() {
            self.publish()?;
        }
        self.addresses.lock().free(sandbox)?;
        forget(&ports);
        Ok(())
    }

    fn reconcile(&self, live: &BTreeSet<String>) -> Result<Vec<String>, Error> {
        let gone: Vec<String> = {
            let addresses = self.addresses.lock();
            addresses
                .attached()
                .map(|attached| attached.sandbox.clone())
                .filter(|one| !live.contains(one))
                .collect()
        };
        for sandbox in &gone {
            self.detach(sandbox)?;
        }
        let routing = Routing::open().map_err(Error::kernel("open a socket for routing"))?;
        let bridge = machine::bridge(&routing, &self.bridge, self.subnet, self.mtu)?;
        // Links first: a sandbox that is attached meanwhile has its file before its link.
        let links = routing.links().map_err(Error::kernel("list links"))?;
        let known: BTreeSet<String> =
            self.addresses.lock().attached().map(|attached| self.host_end(&attached.sandbox)).collect();
        for link in links.iter().filter(|link| link.master == Some(bridge) && !known.contains(&link.name)) {
            routing.delete(link.index).map_err(Error::kernel(format!("remove the link {}", link.name)))?;
        }
        // Somebody else may have removed them.
        *self.published.lock() = 0;
        self.publish()?;
        Ok(gone)
    }

    fn close(&self) -> Result<bool, Error> {
        let mut published = self.published.lock();
        let addresses = self.addresses.lock();
        if addresses.attached().next().is_some() {
            return Ok(false);
        }
        *published = 0;
        machine::route_loopback(&self.bridge, false)?;
        nft::remove(&self.bridge)
            .map_err(Error::kernel(format!("remove the nftables table {}", self.bridge)))?;
        let routing = Routing::open().map_err(Error::kernel("open a socket for routing"))?;
        let find =
            routing.link(&self.bridge).map_err(Error::kernel(format!("find the bridge {}", self.bridge)))?;
        if let Some(bridge) = find {
            routing
                .delete(bridge.index)
                .map_err(Error::kernel(format!("remove the bridge {}", self.bridge)))?;
        }
        Ok(true)
    }

    fn usage(&self) -> Result<BTreeMap<String, InterfaceUsage>, Error> {
        let names: BTreeMap<String, String> = {
            let addresses = self.addresses.lock();
            let name = |attached: &Attached| (self.host_end(&attached.sandbox), attached.sandbox.clone());
            addresses.attached().map(name).collect()
        };
        let routing = Routing::open().map_err(Error::kernel("open a socket for routing"))?;
        let links = routing.links().map_err(Error::kernel("list links"))?;
        let usage = links.into_iter().filter_map(|link| {
            // What the host's end sends is what the pod receives.
            let usage = InterfaceUsage {
                name: INTERFACE.to_owned(),
                received_bytes: link.counters.sent_bytes,
                receive_errors: link.counters.send_errors,
                sent_bytes: link.counters.received_bytes,
                send_errors: link.counters.receive_errors,
            };
            Some((names.get(&link.name)?.clone(), usage))
        });
        Ok(usage.collect())
    }

    /// Sees to it that the rules are those of now, or of later: of many that wait for their turn, the first one writes for all.
    fn publish(&self) -> Result<(), Error> {
        if self.limits.is_some() {
            return Ok(());
        }
        let wanted = self.addresses.lock().version();
        let mut published = self.published.lock();
        if *published >= wanted {
            return Ok(());
        }
        let (version, chains) = {
            let addresses = self.addresses.lock();
            (addresses.version(), rules::chains(&self.bridge, self.subnet, addresses.attached()))
        };
        nft::replace(&self.bridge, &chains)
            .map_err(Error::kernel(format!("write the nftables table {}", self.bridge)))?;
        machine::route_loopback(&self.bridge, true)?;
        *published = version;
        Ok(())
    }
}
