//! Free ports.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::Range;

use super::error::{Error, Result};

/// Below the range from which the kernel takes ports for outgoing connections: there, any connection of any
/// process could take the port before the component binds it.
const RANGE: Range<u16> = 20_000..30_000;
const TRIES: usize = 200;

/// The ports of one attempt to start a control plane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) etcd_client: u16,
    pub(super) etcd_peer: u16,
    pub(super) api_server: u16,
    pub(super) controller_manager: u16,
    pub(super) scheduler: u16,
}

impl Ports {
    /// Free at this moment; another process may still take one, so starting is tried again with others.
    pub(super) fn choose(api_server: Option<u16>, bind: IpAddr) -> Result<Self> {
        let mut taken = Vec::new();
        let mut free = |ip: IpAddr| -> Result<u16> {
            for _ in 0..TRIES {
                let port = rand::random_range(RANGE);
                if !taken.contains(&port) && TcpListener::bind((ip, port)).is_ok() {
                    taken.push(port);
                    return Ok(port);
                }
            }
            Err(Error::NoFreePort(ip))
        };
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok(Self {
            etcd_client: free(loopback)?,
            etcd_peer: free(loopback)?,
            api_server: match api_server {
                Some(port) => port,
                None => free(bind)?,
            },
            controller_manager: free(loopback)?,
            scheduler: free(loopback)?,
        })
    }
}
