//! Connections to the loopback address of a sandbox.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream},
    path::Path,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::net::{TcpSocket, TcpStream};

use super::run_inside;
use vk_provider::go_text::io_error;

/// Connects to a port of the sandbox, as `kubectl port-forward` does: to 127.0.0.1, then to ::1. Without a namespace,
/// in the host's network.
///
/// Only the sockets are created in the namespace; connecting is asynchronous and blocks no thread.
pub async fn connect(sandbox: &str, netns: Option<&Path>, port: u16) -> io::Result<TcpStream> {
    let sockets = match netns {
        Some(netns) => {
            run_inside(netns, || (new_socket(AddressFamily::INET), new_socket(AddressFamily::INET6))).await
        }
        None => Ok((new_socket(AddressFamily::INET), new_socket(AddressFamily::INET6))),
    };
    // containerd's text, which users know from `kubectl port-forward`.
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
        "failed to connect to localhost:{port} inside namespace {sandbox:?}, IPv4: dial tcp4 127.0.0.1:{port}: connect: {} IPv6 dial tcp6 [::1]:{port}: connect: {} ",
        io_error(&first),
        io_error(&second)
    );
    Err(failed(first.kind(), why))
}

fn new_socket(family: AddressFamily) -> io::Result<StdStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(StdStream::from(socket_with(family, SocketType::STREAM, flags, None)?))
}

async fn dial(socket: io::Result<StdStream>, address: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(socket?).connect(address).await
}
