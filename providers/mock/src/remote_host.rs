//! The client of a host in another process, which reconnects automatically.

use std::{
    collections::HashMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinSet,
};
use vk_provider::{Error, PodChange, PodRef, Result, error::Kind};

use crate::{
    change_queue::ChangeQueue,
    protocol::{self, ClientMessage, ServerMessage},
    simulator::{Reply, Request},
};

/// The maximum number of queued requests; more callers wait.
const QUEUE: usize = 64;
/// Short, because the other process is on the same host.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// The pods of one node in another process.
pub(crate) struct RemoteHost {
    inner: Arc<Inner>,
    _connection: JoinSet<()>,
}

struct Inner {
    socket: PathBuf,
    node: Arc<str>,
    state: Mutex<State>,
    connected: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// Lines for the socket; `None` while there is no connection.
    lines: Option<mpsc::Sender<Vec<u8>>>,
    waiting: HashMap<u64, oneshot::Sender<Result<Reply>>>,
    last_id: u64,
    /// Known pods, which are refreshed after a reconnect.
    known: HashMap<Arc<str>, PodRef>,
    readers: HashMap<u64, ChangeReader>,
}

struct ChangeReader {
    queue: ChangeQueue<Option<Box<PodStatus>>>,
    changed: Arc<Notify>,
}

/// One reader of changes; dropping it unsubscribes.
struct Subscription {
    inner: Arc<Inner>,
    id: u64,
    changed: Arc<Notify>,
}

/// A call under way. Dropping it abandons the call.
struct PendingCall<'a> {
    inner: &'a Inner,
    id: u64,
}

// === impl RemoteHost ===

impl RemoteHost {
    /// Starts to connect, and retries until dropped.
    pub(crate) fn new(socket: PathBuf, node: Arc<str>) -> Self {
        let (state, connected) = (Mutex::default(), watch::Sender::new(false));
        let inner = Arc::new(Inner { socket, node, state, connected });
        let mut connection = JoinSet::new();
        connection.spawn(keep_connected(Arc::clone(&inner)));
        Self { inner, _connection: connection }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.inner.socket
    }

    /// The state of the connection.
    pub(crate) fn connected(&self) -> watch::Receiver<bool> {
        self.inner.connected.subscribe()
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Reply> {
        self.inner.call(request).await
    }

    pub(crate) fn changes(&self) -> BoxStream<'static, PodChange> {
        let changed = Arc::new(Notify::new());
        let mut state = self.inner.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        state
            .readers
            .insert(id, ChangeReader { queue: ChangeQueue::default(), changed: Arc::clone(&changed) });
        drop(state);
        let subscription = Subscription { inner: Arc::clone(&self.inner), id, changed };
        stream::unfold(subscription, |subscription| async move {
            let change = subscription.next().await;
            Some((change, subscription))
        })
        .boxed()
    }
}

impl fmt::Debug for RemoteHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteHost").field(&self.inner.socket).finish()
    }
}

async fn keep_connected(inner: Arc<Inner>) {
    let mut wait = FIRST_RETRY;
    loop {
        let connection = UnixStream::connect(&inner.socket).await;
        if let Ok(stream) = connection {
            wait = FIRST_RETRY;
            if let Err(error) = Box::pin(inner.use_connection(stream)).await {
                tracing::warn!(socket = %inner.socket.display(), %error, "lost the connection to the mock's backend");
            }
            inner.disconnect();
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_RETRY);
    }
}

// === impl Inner ===

impl Inner {
    fn unavailable(&self) -> Error {
        Error::unavailable(format!("the mock's backend at {} is not connected", self.socket.display()))
    }

    async fn call(&self, request: Request) -> Result<Reply> {
        let (answer, answered) = oneshot::channel();
        let subject = match &request {
            Request::Create(desired) | Request::Update(desired) => PodRef::of(&desired.pod),
            Request::Delete { pod, .. } | Request::Status(pod) | Request::Vanish(pod) => Some(pod.clone()),
            _ => None,
        };
        let (id, lines) = {
            let mut state = self.state.lock();
            let lines = state.lines.clone().ok_or_else(|| self.unavailable())?;
            state.last_id += 1;
            let id = state.last_id;
            state.waiting.insert(id, answer);
            (id, lines)
        };
        let _waiting = PendingCall { inner: self, id };
        let sent = match protocol::line(&ClientMessage::Ask { id, request }) {
            Ok(line) => lines.send(line).await.map_err(|_| self.unavailable()),
            Err(error) => Err(error),
        };
        sent?;
        let reply = answered.await.map_err(|_| self.unavailable())?;
        self.record_pods(subject, &reply);
        reply
    }

    /// Records which pods exist.
    fn record_pods(&self, subject: Option<PodRef>, reply: &Result<Reply>) {
        let mut state = self.state.lock();
        match (subject, reply) {
            (Some(pod), Ok(_)) => {
                state.known.insert(Arc::clone(&pod.uid), pod);
            }
            (Some(pod), Err(error)) if *error.kind() == Kind::NotFound => {
                state.known.remove(&pod.uid);
            }
            (None, Ok(Reply::Pods(pods))) => {
                let listed = pods.iter().map(|listed| (Arc::clone(&listed.pod.uid), listed.pod.clone()));
                state.known.extend(listed);
            }
            _ => {}
        }
    }

    /// Uses a connection until it breaks.
    async fn use_connection(&self, stream: UnixStream) -> io::Result<()> {
        let (read, mut write) = stream.into_split();
        let (lines, mut outgoing) = mpsc::channel::<Vec<u8>>(QUEUE);
        let subscribe = protocol::line(&ClientMessage::Subscribe { node: self.node.to_string() })
            .map_err(io::Error::other)?;
        write.write_all(&subscribe).await?;
        self.state.lock().lines = Some(lines);
        let writing = async {
            while let Some(line) = outgoing.recv().await {
                write.write_all(&line).await?;
            }
            Ok(())
        };
        let refreshing = async {
            // Only now it counts as connected, so that changes after this are reported after this.
            self.refresh_all().await;
            self.set_connected(true);
            std::future::pending::<io::Result<()>>().await
        };
        tokio::select! {
            ended = self.listen(BufReader::new(read)) => ended,
            ended = writing => ended,
            ended = refreshing => ended,
        }
    }

    async fn listen(&self, mut incoming: BufReader<tokio::net::unix::OwnedReadHalf>) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if incoming.read_until(b'\n', &mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match serde_json::from_slice(&line).map_err(io::Error::other)? {
                ServerMessage::Answer { id, answer } => {
                    let waiting = self.state.lock().waiting.remove(&id);
                    if let Some(waiting) = waiting {
                        // The receiver is gone if the call was cancelled.
                        let _ = waiting.send(answer.into());
                    }
                }
                ServerMessage::Change { pod, status } => {
                    let mut state = self.state.lock();
                    if status.is_some() {
                        state.known.insert(Arc::clone(&pod.uid), pod.clone());
                    } else {
                        state.known.remove(&pod.uid);
                    }
                    state.notify(&pod, status.as_deref());
                }
            }
        }
    }

    /// Refreshes all known and all listed pods after a connect, because earlier changes were missed.
    async fn refresh_all(&self) {
        if let Err(error) = self.call(Request::List { node: Arc::clone(&self.node) }).await {
            tracing::warn!(%error, "cannot list the pods of the mock's backend");
        }
        let mut state = self.state.lock();
        let mut known: Vec<PodRef> = state.known.values().cloned().collect();
        known.sort();
        for pod in &known {
            state.notify(pod, None);
        }
    }

    fn disconnect(&self) {
        let mut state = self.state.lock();
        state.lines = None;
        state.waiting.clear();
        drop(state);
        self.set_connected(false);
    }

    fn set_connected(&self, now: bool) {
        self.connected.send_if_modified(|connected| std::mem::replace(connected, now) != now);
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.inner.state.lock().waiting.remove(&self.id);
    }
}

// === impl State ===

impl State {
    fn notify(&mut self, pod: &PodRef, status: Option<&PodStatus>) {
        for reader in self.readers.values_mut() {
            reader.queue.push(pod, status.cloned().map(Box::new));
            reader.changed.notify_one();
        }
    }
}

// === impl Subscription ===

impl Subscription {
    async fn next(&self) -> PodChange {
        loop {
            let taken = self.inner.state.lock().readers.get_mut(&self.id).and_then(|own| own.queue.pop());
            match taken {
                Some((pod, Some(status))) => return PodChange::Status(pod, status),
                Some((pod, None)) => return PodChange::Refresh(pod),
                None => self.changed.notified().await,
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.inner.state.lock().readers.remove(&self.id);
    }
}
