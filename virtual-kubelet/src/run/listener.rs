//! Listens on ports.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpListener, TcpSocket},
    time::Instant,
};
use tracing::warn;

use crate::config::{AdminAddr, Listen};

/// How long a port that is in use is tried: a process that was killed a moment ago may still have it.
const RETRY_LIMIT: Duration = Duration::from_secs(5);
const RETRY_PERIOD: Duration = Duration::from_millis(100);
/// How many connections may wait to be accepted.
pub(super) const BACKLOG: u32 = 1024;

/// Until when addresses that are in use are tried. One deadline is for all listeners of a process.
pub(super) fn retry_deadline() -> Instant {
    Instant::now() + RETRY_LIMIT
}

/// Listens on an address. Retries until the deadline while it is in use.
pub(super) async fn listen(address: Listen, deadline: Instant) -> io::Result<TcpListener> {
    retry_while_in_use(address, deadline, || bind(address)?.listen(BACKLOG)).await
}

/// Keeps others from listening on an address. Connections are refused until the socket listens. Retries like [`listen`].
pub(super) async fn reserve(address: Listen, deadline: Instant) -> io::Result<TcpSocket> {
    retry_while_in_use(address, deadline, || bind(address)).await
}

async fn retry_while_in_use<T>(
    address: Listen,
    deadline: Instant,
    bind: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    let mut warned = false;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                if !std::mem::replace(&mut warned, true) {
                    warn!(address = shown(address), "the address is in use: trying for {RETRY_LIMIT:?}");
                }
                tokio::time::sleep(RETRY_PERIOD).await;
            }
            bound => return bound,
        }
    }
}

fn bind(listen: Listen) -> io::Result<TcpSocket> {
    let bind = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Connections of a process that has ended must not keep the next one from listening.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    };
    match listen.address {
        Some(address) => bind(SocketAddr::new(address, listen.port)),
        // All interfaces, IPv6 and IPv4 where the system has both.
        None => match bind(SocketAddr::from(([0_u16; 8], listen.port))) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                bind(SocketAddr::from(([0_u8; 4], listen.port)))
            }
            bound => bound,
        },
    }
}

/// An address as in the configuration.
pub(super) fn shown(listen: Listen) -> String {
    AdminAddr(Some(listen)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn taken() -> (TcpListener, Listen) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, Listen { address: Some(address.ip()), port: address.port() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_becomes_free_within_seconds_is_taken() {
        let (holder, address) = taken().await;
        let freed = async {
            tokio::time::sleep(RETRY_LIMIT / 2).await;
            drop(holder);
        };
        let (listener, ()) = tokio::join!(listen(address, retry_deadline()), freed);
        assert_eq!(listener.unwrap().local_addr().unwrap().port(), address.port);
    }

    #[tokio::test(start_paused = true)]
    async fn ports_that_stay_taken_are_given_up_together() {
        let begin = Instant::now();
        let (_first, first) = taken().await;
        let (_second, second) = taken().await;
        let deadline = retry_deadline();
        for address in [first, second] {
            assert_eq!(listen(address, deadline).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
        assert!(begin.elapsed() < RETRY_LIMIT + 2 * RETRY_PERIOD, "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn a_reserved_port_refuses_connections_until_it_listens() {
        let (holder, address) = taken().await;
        drop(holder);
        let socket = reserve(address, retry_deadline()).await.unwrap();
        let target = (address.address.unwrap(), address.port);
        let refused = tokio::net::TcpStream::connect(target).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let _listener = socket.listen(BACKLOG).unwrap();
        tokio::net::TcpStream::connect(target).await.unwrap();
    }
}
