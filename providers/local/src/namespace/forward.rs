//! Connections to the loop-back address in a sandbox.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream},
    path::Path,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::net::{TcpSocket, TcpStream};
use vk_provider::go_text::io_error;

use super::inside;

/// Connects to a port of the sandbox, as `kubectl port-forward` does: to 127.0.0.1, then to ::1. Without a namespace, in the host's network.
///
/// Only the sockets are made inside; they connect from here, so that an answer that does not come holds no thread.
pub async fn connect(sandbox: &str, netns: Option<&Path>, port: u16) -> io::Result<TcpStream> {
    let sockets = match netns {
        Some(netns) => {
            inside(netns, || (unconnected(AddressFamily::Inet), unconnected(AddressFamily::Inet6))).await
        }
        None => Ok((unconnected(AddressFamily::Inet), unconnected(AddressFamily::Inet6))),
    };
    // containerd's words, which users know from `kubectl port-forward`.
    let place = netns.map_or_else(|| "host".to_owned(), |netns| netns.display().to_string());
    let failed = |kind: io::ErrorKind, why: String| {
        io::Error::new(kind, format!("failed to execute portforward in network namespace {place:?}: {why}"))
    };
    let (four, six) = sockets.map_err(|error| failed(error.kind(), error.to_string()))?;
    let first = match dial(four, (Ipv4Addr::LOCALHOST, port).into()).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let second = match dial(six, (Ipv6Addr::LOCALHOST, port).into()).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let why = format!(
        "failed to connect to localhost:{port} inside namespace {sandbox:?}, IPv4: dial tcp4 127.0.0.1:{port}: {} IPv6 dial tcp6 [::1]:{port}: {} ",
        connect_error(&first),
        connect_error(&second)
    );
    Err(failed(first.kind(), why))
}

fn unconnected(family: AddressFamily) -> io::Result<StdStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(StdStream::from(socket(family, SockType::Stream, flags, None)?))
}

async fn dial(socket: io::Result<StdStream>, address: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(socket?).connect(address).await
}

/// A failed connect as Go prints it.
fn connect_error(error: &io::Error) -> String {
    format!("connect: {}", io_error(error))
}
