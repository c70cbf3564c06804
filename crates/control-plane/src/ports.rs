//! Free ports.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::Range;

use crate::error::{Error, Result};

/// Below the kernel's range of ephemeral ports, where any outgoing connection could take a port before the component binds it.
const RANGE: Range<u16> = 20_000..30_000;
const TRIES: usize = 200;

/// The ports of a control plane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) etcd_client: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) api_server: u16,
    pub(crate) controller_manager: u16,
    pub(crate) scheduler: u16,
}

impl Ports {
    /// Chooses ports that are free now. Another process may still take one; the start is then retried with others.
    pub(crate) fn choose(api_server: Option<u16>, bind: IpAddr) -> Result<Self> {
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
