//! The API client: finds the API server and reloads credentials when the kubeconfig or the files it names change.

use std::{
    env,
    ffi::OsString,
    fs,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tracing::{info, warn};
use vk_supervisor::{Supervisor, task};

use crate::{
    Credentials, Error, Fence, Metrics,
    impersonation::Impersonation,
    transport::Transport,
    watch_pool::{WatchPool, WatchSlot},
};

/// How often the kubeconfig and the files it names are compared with those in use. Reading them is cheap and, unlike file
/// notifications, works on every file system and through the symlinks that Kubernetes swaps.
const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// Concurrent writes of one kind. A connection carries a hundred requests; lease and node updates need room beside these
/// writes.
const CONCURRENT_WRITES: usize = 80;

/// How to reach the API server.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// A kubeconfig named by the user. Otherwise the first that exists of `$KUBECONFIG`, the Pod's ServiceAccount and
    /// `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The address of the API server. Overrides the one in the kubeconfig.
    pub server: Option<String>,
}

/// Why a client cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The kubeconfig cannot be read.
    #[error("cannot read kubeconfig {}: {reason} (name another with --kubeconfig or KUBECONFIG)", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: io::Error,
    },
    /// The kubeconfig is malformed.
    #[error("kubeconfig {}: {reason}", path.display())]
    Malformed {
        /// The file, or the last of several merged files.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No credentials were found.
    #[error(
        "no credentials for an API server: use --kubeconfig, set KUBECONFIG, create ~/.kube/config, or run in a Pod ({reason})"
    )]
    Missing {
        /// Why in-cluster configuration does not work.
        reason: String,
    },
    /// The kubeconfig cannot be written.
    #[error("cannot write kubeconfig {}: {reason}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: String,
    },
    /// The address of the API server is not a URL.
    #[error("API server address {address:?} is not a URL such as https://10.0.0.1:6443")]
    Address {
        /// The value given.
        address: String,
    },
}

/// A client of the API server. Clones share connections and use reloaded credentials from their next call on.
#[derive(Clone)]
pub struct Client {
    current: watch::Receiver<Transport>,
    /// The server's address, for messages.
    server: String,
    metrics: Metrics,
    /// The server rejected or ignored a streaming list (`sendInitialEvents`). It is not tried again.
    watch_list_unsupported: Arc<AtomicBool>,
    write_limiter: Arc<Semaphore>,
    watch_pool: Arc<WatchPool>,
    /// Writes are sent only while this is open.
    fence: Option<Fence>,
    /// The node as which requests are made, if not with our own identity.
    impersonation: Option<Arc<Impersonation>>,
}

enum CredentialOrigin {
    Files(Vec<PathBuf>),
    Pod,
}

// === impl ClientOptions ===

impl ClientOptions {
    /// Reads the credentials and returns a client that connects with its first call. The supervisor owns the task that
    /// reloads credentials.
    pub async fn connect(&self, supervisor: &Supervisor, metrics: Metrics) -> Result<Client, ConfigError> {
        let origin = self.origin()?;
        let config = self.load(&origin).await?;
        let server = config.cluster_url.to_string();
        let (sender, current) = watch::channel(build(&config, &origin)?);
        if let CredentialOrigin::Files(files) = origin {
            let (source, guard) = (self.clone(), supervisor.clone());
            let used = fingerprint(&files);
            supervisor.spawn("kubeconfig", task::Kind::Work, async move {
                tokio::select! {
                    () = source.reload(files, used, sender) => {}
                    () = guard.stopping() => {}
                }
            });
        }
        let server = server.trim_end_matches('/').to_owned();
        Ok(Client::over(current, server, metrics))
    }

    fn origin(&self) -> Result<CredentialOrigin, ConfigError> {
        let split = |value: OsString| -> Vec<PathBuf> {
            env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
        };
        let named = match &self.kubeconfig {
            Some(path) if path.exists() => vec![path.clone()],
            // A list of files, as in $KUBECONFIG.
            Some(path) => split(path.clone().into_os_string()),
            None => env::var_os("KUBECONFIG").map(split).unwrap_or_default(),
        };
        if !named.is_empty() {
            return Ok(CredentialOrigin::Files(named));
        }
        let in_pod = kube::Config::incluster();
        let home = env::home_dir().map(|home| home.join(".kube/config")).filter(|path| path.exists());
        match (in_pod, home) {
            (Ok(_), _) => Ok(CredentialOrigin::Pod),
            (Err(_), Some(path)) => Ok(CredentialOrigin::Files(vec![path])),
            (Err(error), None) => Err(ConfigError::Missing { reason: pod_reason(&error) }),
        }
    }

    async fn load(&self, origin: &CredentialOrigin) -> Result<kube::Config, ConfigError> {
        let mut config = match origin {
            CredentialOrigin::Pod => kube::Config::incluster()
                .map_err(|error| ConfigError::Missing { reason: pod_reason(&error) })?,
            CredentialOrigin::Files(files) => from_files(files).await?,
        };
        if let Some(address) = &self.server {
            config.cluster_url =
                address.parse().map_err(|_| ConfigError::Address { address: address.clone() })?;
        }
        // The controllers retry forever, with their own back-off.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(10));
        // Input for a process that does not read it may wait in the connection for as long as the process likes.
        config.write_timeout = None;
        Ok(config)
    }

    async fn reload(&self, files: Vec<PathBuf>, mut used: Vec<Vec<u8>>, sender: watch::Sender<Transport>) {
        let mut reported = None;
        loop {
            tokio::time::sleep(RELOAD_PERIOD).await;
            let now = fingerprint(&files);
            if now == used {
                continue;
            }
            let origin = CredentialOrigin::Files(files.clone());
            let loaded = match self.load(&origin).await {
                Ok(config) => build(&config, &origin),
                Err(error) => Err(error),
            };
            match loaded {
                Ok(client) => {
                    info!("the kubeconfig changed: using the new credentials");
                    sender.send_replace(client);
                    used = now;
                    reported = None;
                }
                // Files are often half written while they are copied, and what else they need may come later: keep the old
                // credentials and try again, also when the files do not change again.
                Err(error) => {
                    let message = error.to_string();
                    if reported.as_ref() != Some(&message) {
                        warn!(%error, "the kubeconfig changed and cannot be used: keeping the old credentials and trying again");
                        reported = Some(message);
                    }
                }
            }
        }
    }
}

async fn from_files(files: &[PathBuf]) -> Result<kube::Config, ConfigError> {
    let mut merged: Option<Kubeconfig> = None;
    let mut last = PathBuf::new();
    for path in files {
        last.clone_from(path);
        let one = read(path)?;
        merged = Some(match merged {
            None => one,
            Some(others) => others.merge(one).map_err(|error| malformed(path, &error))?,
        });
    }
    let merged = merged.unwrap_or_default();
    kube::Config::from_custom_kubeconfig(merged, &KubeConfigOptions::default())
        .await
        .map_err(|error| malformed(&last, &error))
}

/// Reads one kubeconfig. Relative paths in it are relative to the file.
pub(crate) fn read(path: &Path) -> Result<Kubeconfig, ConfigError> {
    fs::read(path).map_err(|reason| ConfigError::Unreadable { path: path.to_owned(), reason })?;
    Kubeconfig::read_from(path).map_err(|error| malformed(path, &error))
}

fn malformed(path: &Path, error: &KubeconfigError) -> ConfigError {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    let reason = text.lines().next().unwrap_or_default().to_owned();
    ConfigError::Malformed { path: path.to_owned(), reason }
}

fn pod_reason(error: &InClusterError) -> String {
    error.to_string()
}

fn build(config: &kube::Config, origin: &CredentialOrigin) -> Result<Transport, ConfigError> {
    Transport::new(config).map_err(|reason| {
        let path = match origin {
            CredentialOrigin::Files(files) => files.first().cloned().unwrap_or_default(),
            CredentialOrigin::Pod => PathBuf::from("of the Pod"),
        };
        ConfigError::Malformed { path, reason }
    })
}

/// The contents of the kubeconfigs and of every file they name. Unreadable files count as empty.
fn fingerprint(files: &[PathBuf]) -> Vec<Vec<u8>> {
    let mut contents = Vec::new();
    for path in files {
        contents.push(fs::read(path).unwrap_or_default());
        let Ok(config) = Kubeconfig::read_from(path) else { continue };
        let named = config
            .clusters
            .iter()
            .filter_map(|cluster| cluster.cluster.as_ref()?.certificate_authority.clone())
            .chain(
                config
                    .auth_infos
                    .iter()
                    .filter_map(|user| user.auth_info.as_ref()?.client_certificate.clone()),
            )
            .chain(config.auth_infos.iter().filter_map(|user| user.auth_info.as_ref()?.client_key.clone()));
        contents.extend(named.map(|file| fs::read(file).unwrap_or_default()));
    }
    contents
}

// === impl Client ===

impl Client {
    /// Wraps a kube-rs client. Its credentials are not reloaded.
    pub fn fixed(client: kube::Client, metrics: Metrics) -> Self {
        let (_, current) = watch::channel(Transport::single(client));
        Self::over(current, "the API server".to_owned(), metrics)
    }

    fn over(current: watch::Receiver<Transport>, server: String, metrics: Metrics) -> Self {
        Self {
            current,
            server,
            metrics,
            watch_list_unsupported: Arc::default(),
            write_limiter: write_limiter(),
            watch_pool: Arc::default(),
            fence: None,
            impersonation: None,
        }
    }

    /// This client with a fence: it and its clones write only while the fence is open.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// This client without a fence, for the lease itself: its writes carry a precondition.
    #[must_use]
    pub fn unfenced(&self) -> Self {
        Self { fence: None, ..self.clone() }
    }

    /// The fence that guards writes, if any.
    pub fn fence(&self) -> Option<&Fence> {
        self.fence.as_ref()
    }

    /// This client, impersonating a node: the API server allows exactly what the node's kubelet may do. We need the right to
    /// `impersonate` the user `system:node:NAME` and the groups `system:nodes` and `system:authenticated`. Connections, write
    /// limiter and fence are shared.
    #[must_use]
    pub fn impersonating(&self, node: &str) -> Self {
        Self { impersonation: Some(Arc::new(Impersonation::as_node(node))), ..self.clone() }
    }

    /// The address of the API server, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The current credentials, for a server other than the API server. They are our own, also if this client impersonates a node.
    pub fn credentials(&self) -> Credentials {
        self.current.borrow().credentials.clone()
    }

    /// The kube-rs client for calls, with the current credentials.
    pub fn kube(&self) -> kube::Client {
        self.transport(|transport| transport.calls.clone())
    }

    /// The kube-rs client for watches, with the current credentials.
    pub(crate) fn kube_for_watches(&self) -> kube::Client {
        self.transport(|transport| transport.watches.clone())
    }

    /// Picks one of the current clients.
    fn transport(&self, pick: impl FnOnce(&Transport) -> kube::Client) -> kube::Client {
        let current = self.current.borrow();
        match &self.impersonation {
            Some(impersonation) => impersonation.select(&current, pick),
            None => pick(&current),
        }
    }

    /// The kube-rs client for a watch that holds a slot of the pool.
    pub(crate) fn kube_on_slot(&self, watch_slot: &WatchSlot) -> kube::Client {
        let client = self.current.borrow().watch_pool[watch_slot.connection].clone();
        match &self.impersonation {
            // Wrapped for each watch: the pool has several connections, each with few watches of one node.
            Some(impersonation) => impersonation.wrap(&client),
            None => client,
        }
    }

    /// Drops the shared connections on which nothing has come from the API server since this time: for a caller who has waited for
    /// an answer since then. Requests in flight on them fail, and later ones use a new connection.
    pub fn drop_silent_connections(&self, since: Instant) {
        let dropped = self.current.borrow().connections.drop_silent(since);
        if dropped > 0 {
            let silence = since.elapsed();
            warn!(
                connections = dropped,
                ?silence,
                "connections to the API server have fallen silent: dropped"
            );
        }
    }

    /// Reserves a slot for the watch of a single object; `None` when the pool is full. Clones share the pool.
    pub fn watch_slot(&self) -> Option<WatchSlot> {
        self.watch_pool.acquire()
    }

    /// Whether credentials were reloaded since the last call of this.
    #[cfg(test)]
    fn renewed(&mut self) -> bool {
        let renewed = self.current.has_changed().unwrap_or(false);
        self.current.mark_unchanged();
        renewed
    }

    /// Whether to try streaming lists.
    pub(crate) fn supports_watch_list(&self) -> bool {
        !self.watch_list_unsupported.load(Ordering::Relaxed)
    }

    /// Stops using streaming lists. Returns whether they were used until now.
    pub(crate) fn disable_watch_list(&self) -> bool {
        !self.watch_list_unsupported.swap(true, Ordering::Relaxed)
    }

    /// Limits writes of which thousands may be due at once. A request that queues inside the HTTP client uses up its time limit
    /// there; callers with many writes acquire a permit before each.
    pub fn write_limiter(&self) -> Arc<Semaphore> {
        Arc::clone(&self.write_limiter)
    }

    /// Runs a request that changes something, unless the fence is closed.
    pub(crate) async fn write<T>(
        &self,
        request: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        match &self.fence {
            Some(fence) => fence.guard(request).await?,
            None => request.await,
        }
    }

    /// The metrics that count this client's calls.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

fn write_limiter() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(CONCURRENT_WRITES))
}

#[cfg(test)]
mod tests;
