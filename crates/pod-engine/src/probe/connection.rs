//! TCP connections of probes and hooks, with the kubelet's error texts.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::util::intstr::IntOrString};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::mpsc,
};

use super::prober::ProbeOutcome;
use crate::text::io_error;

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Connects. The error is a kubelet's.
pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    TcpStream::connect((host, port)).await.map_err(|error| {
        let address = authority(host, port);
        if error.raw_os_error().is_some() {
            format!("dial tcp {address}: connect: {}", io_error(&error))
        } else {
            format!("dial tcp: lookup {host}: no such host")
        }
    })
}

/// Probes by connecting.
pub(super) async fn probe(host: &str, port: u16, timeout: Duration) -> ProbeOutcome {
    match tokio::time::timeout(timeout, connect(host, port)).await {
        Ok(Ok(_)) => ProbeOutcome::Success,
        Ok(Err(why)) => ProbeOutcome::Failure(why),
        Err(_) => ProbeOutcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

/// Resolves a port of a container, by number or name.
pub(crate) fn port(given: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match given {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            match named {
                Some(port) => port.container_port,
                None => {
                    name.parse().map_err(|_| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?
                }
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

/// The first bytes that a peer sent, from which its protocol is detected.
#[derive(Clone, Default)]
pub(super) struct FirstBytes(Arc<Mutex<Vec<u8>>>);

/// A connection that records the first bytes it receives.
pub(super) struct RecordingStream {
    stream: TcpStream,
    first: FirstBytes,
}

/// The work that a connection needs done drive_until the requests on it; gone once it is finished.
pub(super) type Driver = Option<BoxFuture<'static, ()>>;

/// Collects the futures that an HTTP/2 connection spawns. The one who awaits the response runs them, so nothing outlives the probe.
#[derive(Clone)]
pub(super) struct ConnectionExecutor(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

// === impl First ===

impl FirstBytes {
    const KEPT: usize = 128;

    /// Whether the peer speaks HTTP/2: its first frame is SETTINGS.
    pub(super) fn is_http2(&self) -> bool {
        self.0.lock().get(3) == Some(&4)
    }

    /// Whether the peer speaks plain HTTP.
    pub(super) fn is_plain_http(&self) -> bool {
        self.0.lock().starts_with(b"HTTP/")
    }

    /// The first line.
    pub(super) fn line(&self) -> String {
        let kept = self.0.lock();
        let line = kept.split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line.trim_ascii_end()).into_owned()
    }
}

// === impl RecordingStream ===

impl RecordingStream {
    pub(super) fn new(stream: TcpStream) -> (Self, FirstBytes) {
        let first = FirstBytes::default();
        (Self { stream, first: first.clone() }, first)
    }
}

impl AsyncRead for RecordingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let mut first = self.first.0.lock();
        let missing = FirstBytes::KEPT - first.len();
        first.extend(buf.filled()[before..].iter().take(missing));
        drop(first);
        polled
    }
}

impl AsyncWrite for RecordingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// === impl ConnectionExecutor ===

impl ConnectionExecutor {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ConnectionExecutor {
    fn execute(&self, work: F) {
        // This fails only if the driver is gone, and then the connection is too.
        let _refused = self.0.send(work.boxed());
    }
}

/// Runs a connection and the futures that it spawns.
pub(super) async fn drive(
    connection: impl Future<Output = ()> + Send + 'static,
    mut more: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>,
) {
    let mut work = FuturesUnordered::from_iter([connection.boxed()]);
    loop {
        tokio::select! {
            Some(another) = more.recv() => work.push(another),
            done = work.next() => if done.is_none() { return },
        }
    }
}

/// Script something on a connection while the connection is driven.
pub(super) async fn drive_until<T>(driver: &mut Driver, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    if let Some(running) = driver.as_mut() {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = running => {}
        }
        *driver = None;
    }
    work.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_number_by_name_and_by_a_numeric_string() {
        let container: Container = serde_json::from_value(
            serde_json::json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}),
        )
        .unwrap();
        let by_name = |name: &str| port(&IntOrString::String(name.to_owned()), &container);
        assert_eq!(port(&IntOrString::Int(80), &container), Ok(80));
        assert_eq!(by_name("web"), Ok(8080));
        assert_eq!(by_name("81"), Ok(81));
        assert_eq!(by_name("none"), Err("strconv.Atoi: parsing \"none\": invalid syntax".to_owned()));
        assert_eq!(port(&IntOrString::Int(0), &container), Err("invalid port number: 0".to_owned()));
        assert_eq!(port(&IntOrString::Int(65_536), &container), Err("invalid port number: 65536".to_owned()));
    }

    #[test]
    fn addresses_of_both_families_are_written_with_their_port() {
        assert_eq!(authority("10.0.0.1", 80), "10.0.0.1:80");
        assert_eq!(authority("fd00::1", 80), "[fd00::1]:80");
    }
}
