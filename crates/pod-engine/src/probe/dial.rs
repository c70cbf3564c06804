//! Connections, and what is said when there is none: in the words that users know from a kubelet.

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
use vk_provider::go_text::io_error;

use super::prober::Outcome;

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A connection, or why there is none.
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

/// Whether a connection can be made.
pub(super) async fn probe(host: &str, port: u16, limit: Duration) -> Outcome {
    match tokio::time::timeout(limit, connect(host, port)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(why)) => Outcome::Failure(why),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

/// A container's port by number or name.
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

/// A duration of whole seconds as Go prints it.
pub(super) fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// The first bytes that a peer sent: they tell who answers in which protocol.
#[derive(Clone, Default)]
pub(super) struct First(Arc<Mutex<Vec<u8>>>);

/// A connection that keeps the first bytes.
pub(super) struct Watched {
    stream: TcpStream,
    first: First,
}

/// The work that a connection needs done beside the requests on it; gone once it is finished.
pub(super) type Driver = Option<BoxFuture<'static, ()>>;

/// Takes what an HTTP/2 connection wants to have run, to be run by whoever waits for the answer: nothing outlives the probe.
#[derive(Clone)]
pub(super) struct Beside(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

// === impl First ===

impl First {
    const KEPT: usize = 128;

    /// Whether the peer speaks HTTP/2: then it begins with its settings.
    pub(super) fn is_http2(&self) -> bool {
        self.0.lock().get(3) == Some(&4)
    }

    /// Whether the peer speaks HTTP without TLS.
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

// === impl Watched ===

impl Watched {
    pub(super) fn new(stream: TcpStream) -> (Self, First) {
        let first = First::default();
        (Self { stream, first: first.clone() }, first)
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let mut first = self.first.0.lock();
        let missing = First::KEPT - first.len();
        first.extend(buf.filled()[before..].iter().take(missing));
        drop(first);
        polled
    }
}

impl AsyncWrite for Watched {
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

// === impl Beside ===

impl Beside {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Beside {
    fn execute(&self, work: F) {
        // Refused only when the driver is gone, and then the connection is too.
        let _refused = self.0.send(work.boxed());
    }
}

/// Runs a connection with what it wants to have run.
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

/// Does something on a connection while the connection is driven.
pub(super) async fn beside<T>(driver: &mut Driver, work: impl Future<Output = T>) -> T {
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
    fn durations_read_as_in_go() {
        for (seconds, wanted) in [(1, "1s"), (59, "59s"), (60, "1m0s"), (90, "1m30s"), (3600, "1h0m0s")] {
            assert_eq!(go_duration(Duration::from_secs(seconds)), wanted);
        }
    }

    #[test]
    fn a_port_is_found_by_number_by_name_and_by_a_number_in_words() {
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
