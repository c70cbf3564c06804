//! The pod network: a bridge with a veth pair for each pod.
//!
//! A node has a bridge with an address. Each pod has a veth pair: one end is a port of the bridge, the other is `eth0`
//! in the pod. Pods reach each other and the host by their addresses, and other hosts by masquerading; host ports are
//! forwarded to pods. IPv4 only.
//!
//! All of this is kernel state. What must survive this process is stored in files of the node's directory, written
//! before the kernel state changes, so that [`Network::reconcile`] finds orphans after a crash at any point. Others may
//! remove the rules at any time: [`Network::maintain_rules`] puts them back.

mod bridge;
mod conntrack;
mod error;
mod ipam;
pub(crate) mod link;
mod netlink;
pub mod nft;
mod rules;
mod rules_check;
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

pub use self::{
    error::Error,
    subnet::{Subnet, SubnetError},
};
use self::{
    ipam::{AddressPool, Attachment},
    link::{RouteSocket, VethPair},
    nft::{Chain, Family},
};
use crate::namespace;

/// The name of the pod's interface.
const INTERFACE: &str = "eth0";

/// Settings of a node's network.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// The directory of its files, created if missing. It also distinguishes this network from others on the host.
    pub dir: PathBuf,
    /// The pod subnet; `None` chooses one that nothing else on the host uses.
    pub subnet: Option<Subnet>,
    /// Whether to masquerade and to forward host ports.
    pub nat: bool,
}

/// The pod network of a node.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bridge: String,
    subnet: Subnet,
    mtu: u32,
    nat_error: Option<String>,
    source_check_error: Option<String>,
    firewall_conflict: Option<String>,
    addresses: Mutex<AddressPool>,
    /// Locked before `addresses` if both are locked.
    applied: Mutex<AppliedRules>,
    /// The generation of the kernel's rules in which all of ours were found.
    checked_generation: Mutex<Option<u32>>,
}

/// The rules in the kernel.
#[derive(Debug, Default)]
struct AppliedRules {
    /// The version of the addresses that they were made from; 0 if they must be written again.
    version: u64,
    /// Whether the network is closed: it has no bridge and no rules.
    closed: bool,
}

/// The steps of attaching a sandbox. A crash may happen after each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AttachStep {
    /// The address is reserved in a file.
    Reserved,
    /// The veth pair exists.
    Paired,
    /// The pod cannot send as another one.
    Checked,
    /// Hairpin mode is set on the bridge port.
    Hairpinned,
    /// The pod's interface has its address.
    Addressed,
    /// The pod has a default route.
    Routed,
    /// Its host ports are forwarded.
    Published,
}

// === impl Network ===

impl Network {
    /// Creates the bridge and the rules, or reuses existing ones.
    ///
    /// Fails if no bridge can be created on this host. Enables IPv4 forwarding on the host; it stays enabled, because
    /// others may rely on it meanwhile.
    pub async fn open(settings: NetworkSettings) -> Result<Self, Error> {
        blocking(move || bridge::open(&settings).map(|inner| Self(Arc::new(inner)))).await
    }

    /// The name of the bridge, which is also the name of the nftables table.
    pub fn bridge(&self) -> &str {
        &self.0.bridge
    }

    /// The pod subnet.
    pub fn subnet(&self) -> Subnet {
        self.0.subnet
    }

    /// The address of the bridge.
    pub fn gateway(&self) -> Ipv4Addr {
        self.0.subnet.gateway()
    }

    /// Why masquerading and host ports are not available, if they are not.
    pub fn nat_error(&self) -> Option<&str> {
        self.0.nat_error.as_deref()
    }

    /// Why pods can send as other pods, if they can.
    pub fn source_check_error(&self) -> Option<&str> {
        self.0.source_check_error.as_deref()
    }

    /// A firewall rule that may drop pod traffic, with the remedy, if one was found when the network was opened.
    pub fn firewall_conflict(&self) -> Option<&str> {
        self.0.firewall_conflict.as_deref()
    }

    /// Gives a sandbox an interface and an address. Idempotent, also after a crash in between; leaves nothing behind
    /// after an error.
    pub async fn attach(
        &self,
        sandbox: &str,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, Error> {
        let (inner, sandbox, netns, ports) =
            (self.0.clone(), sandbox.to_owned(), netns.to_owned(), ports.to_vec());
        blocking(move || {
            let attached = inner.attach(&sandbox, &netns, &ports, AttachStep::Published);
            if attached.is_err() {
                // Return the first error; `reconcile` finds what is left.
                if let Err(error) = inner.detach(&sandbox) {
                    tracing::warn!(%sandbox, %error, "detaching a sandbox after a failed attach failed too");
                }
            }
            attached.map(|address| vec![IpAddr::V4(address)])
        })
        .await
    }

    /// The addresses of a sandbox; empty if it is not attached.
    pub fn addresses(&self, sandbox: &str) -> Vec<IpAddr> {
        self.0
            .addresses
            .lock()
            .get(sandbox)
            .map(|attached| IpAddr::V4(attached.address))
            .into_iter()
            .collect()
    }

    /// Removes a sandbox from the network. Idempotent; the namespace or the link may be gone already.
    pub async fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let (inner, sandbox) = (self.0.clone(), sandbox.to_owned());
        blocking(move || inner.detach(&sandbox)).await
    }

    /// Detaches all sandboxes except `live`, removes bridge ports without a sandbox, and writes the rules again.
    /// Returns the detached sandboxes.
    pub async fn reconcile(&self, live: &BTreeSet<String>) -> Result<Vec<String>, Error> {
        let (inner, live) = (self.0.clone(), live.clone());
        blocking(move || inner.reconcile(&live)).await
    }

    /// Removes the bridge and the rules if no sandbox is attached; returns whether it did.
    pub async fn close(&self) -> Result<bool, Error> {
        let inner = self.0.clone();
        blocking(move || inner.close()).await
    }

    /// Traffic counters of each sandbox's interface.
    pub async fn usage(&self) -> Result<BTreeMap<String, InterfaceUsage>, Error> {
        let inner = self.0.clone();
        blocking(move || inner.usage()).await
    }
}

/// The name of the bridge for the network directory `dir`, which must be a canonical path.
pub fn bridge_name(dir: &Path) -> String {
    bridge::name(dir)
}

/// A firewall rule on this host that may drop traffic of the network in `dir`, with the remedy.
pub fn firewall_conflict(dir: &Path) -> Option<String> {
    // The bridge has no name before the first start of the node.
    let bridge =
        std::fs::canonicalize(dir).map_or_else(|_| "BRIDGE".to_owned(), |place| bridge::name(&place));
    bridge::firewall_conflict(&bridge)
}

/// Runs blocking netlink calls off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::Panicked("the network's thread")))
}

/// Removes conntrack entries of UDP host ports, so that clients reach the current pod. Without it they do after a
/// pause, so failures are only logged.
fn flush_udp_ports(ports: &[PortMapping]) {
    let udp: Vec<u16> =
        ports.iter().filter(|port| port.protocol == Protocol::Udp).map(|port| port.host_port).collect();
    if let Err(error) = conntrack::flush_udp(&udp) {
        tracing::warn!(ports = ?udp, %error, "removing conntrack entries of UDP host ports failed");
    }
}

// === impl Inner ===

impl Inner {
    /// The name of the host's end of a sandbox's veth pair.
    fn host_interface(&self, sandbox: &str) -> String {
        format!("ve{}", bridge::hash(&[self.bridge.as_bytes(), sandbox.as_bytes()], 12))
    }

    fn attach(
        &self,
        sandbox: &str,
        netns: &Path,
        ports: &[PortMapping],
        until: AttachStep,
    ) -> Result<Ipv4Addr, Error> {
        let ports = rules::ports(ports, self.nat_error.as_deref())?;
        let namespace = namespace::open(netns).map_err(Error::kernel(format!("attach sandbox {sandbox}")))?;
        let (attached, changed) = {
            let mut addresses = self.addresses.lock();
            let before = addresses.get(sandbox).map(|attached| attached.ports.clone()).unwrap_or_default();
            (addresses.reserve(sandbox, &ports)?, before != ports)
        };
        let address = attached.address;
        if until == AttachStep::Reserved {
            return Ok(address);
        }

        let socket = RouteSocket::open().map_err(Error::kernel("open a netlink socket"))?;
        let bridge = self.ensure_bridge(&socket)?;
        let inside = namespace::run_inside_blocking(&namespace, RouteSocket::open)
            .and_then(|opened| opened)
            .map_err(Error::kernel(format!("open a netlink socket in {}", netns.display())))?;
        let name = self.host_interface(sandbox);
        let failed = |doing: &str| Error::kernel(format!("{doing} of sandbox {sandbox}"));

        let host = self
            .ensure_veth(&socket, &inside, &namespace, &attached, bridge)
            .map_err(failed("create the veth pair"))?;
        if until == AttachStep::Paired {
            return Ok(address);
        }
        self.check_source(&attached)?;
        if until == AttachStep::Checked {
            return Ok(address);
        }
        socket.hairpin(host).map_err(failed(&format!("set up the bridge port {name}")))?;
        if until == AttachStep::Hairpinned {
            return Ok(address);
        }
        let eth0 = inside
            .link(INTERFACE)
            .and_then(|link| link.ok_or_else(|| std::io::ErrorKind::NotFound.into()))
            .map_err(failed("find eth0"))?;
        inside.set_up(eth0.index).map_err(failed("set up eth0"))?;
        inside.add_address(eth0.index, address, self.subnet).map_err(failed("set the address"))?;
        if until == AttachStep::Addressed {
            return Ok(address);
        }
        inside.add_default(eth0.index, self.subnet.gateway()).map_err(failed("set the route"))?;
        if until == AttachStep::Routed {
            return Ok(address);
        }
        let outdated = {
            let mut applied = self.applied.lock();
            // As on a bridge that was created again.
            if self.nat_error.is_none() && !bridge::routes_loopback(&self.bridge) {
                applied.version = 0;
            }
            applied.version == 0
        };
        if changed || outdated || !ports.is_empty() {
            self.apply_rules()?;
            flush_udp_ports(&ports);
        }
        inside.wait_until_ready(INTERFACE).map_err(failed("wait for eth0"))?;
        socket.wait_until_ready(&name).map_err(failed("wait for the veth pair"))?;
        // Last, because the bridge comes up with its first port.
        socket.wait_until_ready(&self.bridge).map_err(failed("wait for the bridge"))?;
        Ok(address)
    }

    /// The index of the bridge. If there is none it is created, and the network is open again.
    fn ensure_bridge(&self, socket: &RouteSocket) -> Result<u32, Error> {
        let index = bridge::ensure(socket, &self.bridge, self.subnet, self.mtu)?;
        self.applied.lock().closed = false;
        Ok(index)
    }

    /// Creates the veth pair unless a complete one exists; returns the index of the host's end.
    fn ensure_veth(
        &self,
        socket: &RouteSocket,
        inside: &RouteSocket,
        namespace: &std::fs::File,
        attached: &Attachment,
        bridge: u32,
    ) -> std::io::Result<u32> {
        let name = self.host_interface(&attached.sandbox);
        let mac_address = bridge::mac_address(attached.address);
        if let Some(host) = socket.link(&name)? {
            let peer = inside.link(INTERFACE)?;
            if host.master == Some(bridge) && peer.is_some_and(|peer| peer.mac_address == mac_address) {
                return Ok(host.index);
            }
            socket.delete(host.index)?;
        }
        let namespace = namespace.as_fd();
        socket.add_veth(&VethPair {
            name: &name,
            bridge,
            mtu: self.mtu,
            peer: INTERFACE,
            mac_address,
            namespace,
        })?;
        let made = socket.link(&name)?;
        made.map(|link| link.index).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let socket = RouteSocket::open().map_err(Error::kernel("open a netlink socket"))?;
        let name = self.host_interface(sandbox);
        if let Some(link) = socket.link(&name).map_err(Error::kernel(format!("find the link {name}")))? {
            // This removes the pod's end, too.
            socket.delete(link.index).map_err(Error::kernel(format!("remove the link {name}")))?;
        }
        nft::remove(Family::Netdev, &name)
            .map_err(Error::kernel(format!("remove the nftables table {name}")))?;
        let ports = self.addresses.lock().close_ports(sandbox);
        if !ports.is_empty() {
            self.apply_rules()?;
        }
        self.addresses.lock().free(sandbox)?;
        flush_udp_ports(&ports);
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
        let socket = RouteSocket::open().map_err(Error::kernel("open a netlink socket"))?;
        let bridge = self.ensure_bridge(&socket)?;
        // List links before reading the addresses: an attach in progress writes its file before it creates its link.
        let links = socket.links().map_err(Error::kernel("list links"))?;
        let known: BTreeSet<String> =
            self.addresses.lock().attached().map(|attached| self.host_interface(&attached.sandbox)).collect();
        for link in links.iter().filter(|link| link.master == Some(bridge) && !known.contains(&link.name)) {
            socket.delete(link.index).map_err(Error::kernel(format!("remove the link {}", link.name)))?;
        }
        // The rules may have been removed by somebody else.
        self.applied.lock().version = 0;
        self.apply_rules()?;
        Ok(gone)
    }

    fn close(&self) -> Result<bool, Error> {
        let mut applied = self.applied.lock();
        let addresses = self.addresses.lock();
        if addresses.attached().next().is_some() {
            return Ok(false);
        }
        applied.version = 0;
        bridge::route_loopback(&self.bridge, false)?;
        nft::remove(Family::Ip, &self.bridge)
            .map_err(Error::kernel(format!("remove the nftables table {}", self.bridge)))?;
        let socket = RouteSocket::open().map_err(Error::kernel("open a netlink socket"))?;
        let find =
            socket.link(&self.bridge).map_err(Error::kernel(format!("find the bridge {}", self.bridge)))?;
        if let Some(bridge) = find {
            socket
                .delete(bridge.index)
                .map_err(Error::kernel(format!("remove the bridge {}", self.bridge)))?;
        }
        applied.closed = true;
        Ok(true)
    }

    fn usage(&self) -> Result<BTreeMap<String, InterfaceUsage>, Error> {
        let names: BTreeMap<String, String> = {
            let addresses = self.addresses.lock();
            let name =
                |attached: &Attachment| (self.host_interface(&attached.sandbox), attached.sandbox.clone());
            addresses.attached().map(name).collect()
        };
        let socket = RouteSocket::open().map_err(Error::kernel("open a netlink socket"))?;
        let links = socket.links().map_err(Error::kernel("list links"))?;
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

    /// Ensures that the rules match the current addresses or later ones: of several waiting callers, the first one
    /// writes for all.
    fn apply_rules(&self) -> Result<(), Error> {
        if self.nat_error.is_some() {
            return Ok(());
        }
        let wanted = self.addresses.lock().version();
        let mut applied = self.applied.lock();
        if applied.version >= wanted {
            return Ok(());
        }
        self.write_rules(&mut applied)
    }

    fn write_rules(&self, applied: &mut AppliedRules) -> Result<(), Error> {
        let (version, chains) = self.chains();
        nft::replace(Family::Ip, &self.bridge, &chains)
            .map_err(Error::kernel(format!("write the nftables table {}", self.bridge)))?;
        bridge::route_loopback(&self.bridge, true)?;
        applied.version = version;
        Ok(())
    }

    /// The rules for the current addresses, and their version.
    fn chains(&self) -> (u64, Vec<Chain>) {
        let addresses = self.addresses.lock();
        (addresses.version(), rules::chains(&self.bridge, self.subnet, addresses.attached()))
    }

    /// Ensures that a pod can only send as itself.
    fn check_source(&self, attached: &Attachment) -> Result<(), Error> {
        if self.source_check_error.is_some() {
            return Ok(());
        }
        let name = self.host_interface(&attached.sandbox);
        let chain = rules::source_check(&name, attached.address, bridge::mac_address(attached.address));
        nft::replace(Family::Netdev, &name, &[chain])
            .map_err(Error::kernel(format!("write the nftables table {name}")))
    }
}
