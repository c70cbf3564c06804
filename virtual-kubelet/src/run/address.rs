//! Detects the address under which this machine is reachable.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// A documentation address, routed by the default route. Nothing is sent to it.
const DOCUMENTATION_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// The source address of connections to the API server, which is the best guess for where the API server reaches us. If that
/// is a loopback address, which `nodes/proxy` refuses, the source address of the default route.
pub(crate) fn internal_ip(server: &str) -> IpAddr {
    let host = server.parse::<http::Uri>().ok().and_then(|uri| {
        let port = uri.port_u16().unwrap_or(443);
        Some(format!("{}:{port}", uri.host()?))
    });
    let towards_server = host.and_then(|host| host.to_socket_addrs().ok()?.next()).and_then(source_address);
    towards_server
        .filter(|ip| !ip.is_loopback())
        .or_else(|| source_address(DOCUMENTATION_ADDRESS))
        .or(towards_server)
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The source address that the system would use for a target. Connecting a UDP socket only looks up the route.
fn source_address(target: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if target.is_ipv4() { ([0_u8; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_always_found() {
        for server in
            ["https://127.0.0.1:6443", "https://[::1]:6443", "not a server", "https://no.such.host.invalid"]
        {
            assert!(!internal_ip(server).is_unspecified(), "{server}");
        }
    }
}
