//! Finds the API server, and stays connected when the kubeconfig or the files it names change.

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
use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};
use vk_supervisor::{Supervisor, task};

use crate::{
    Error, Fence, Metrics,
    impersonation::Impersonation,
    transport::Transport,
    watch_pool::{WatchPool, WatchSlot},
};

/// How often the kubeconfig and the files it names are compared with what is in use. Reading them is cheap, and unlike
/// file notifications it works on every file system and through the symlinks that Kubernetes swaps.
const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// How many writes of one kind are under way at a time: a connection carries a hundred calls, and those that keep leases
/// and nodes alive must find room beside.
const CONCURRENT_WRITES: usize = 80;

/// Where the credentials come from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// A kubeconfig that the user named. Otherwise `$KUBECONFIG`, the Pod's ServiceAccount, `~/.kube/config`: the first
    /// that there is.
    pub kubeconfig: Option<PathBuf>,
    /// The address of the API server, in place of the one in the kubeconfig.
    pub server: Option<String>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The kubeconfig cannot be read.
    #[error("cannot read kubeconfig {}: {reason} (give another with --kubeconfig or KUBECONFIG)", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// The kubeconfig is not one.
    #[error("kubeconfig {}: {reason}", path.display())]
    Malformed {
        /// The file, or several that are merged.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is none at all.
    #[error(
        "no credentials for an API server: give --kubeconfig, set KUBECONFIG, write ~/.kube/config, or run in a Pod ({reason})"
    )]
    Missing {
        /// Why the process does not seem to run in a Pod.
        reason: String,
    },
    /// The kubeconfig cannot be written.
    #[error("cannot write kubeconfig {}: {reason}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The address of the API server is not one.
    #[error("API server address {address:?} is not a URL such as https://10.0.0.1:6443")]
    Address {
        /// What was given.
        address: String,
    },
}

/// A client of the API server. Clones share the connection and see reloaded credentials at their next call.
#[derive(Clone)]
pub struct Client {
    current: watch::Receiver<Transport>,
    /// The server's address, for messages.
    server: String,
    metrics: Metrics,
    /// The server has refused to stream a listing, or does not know how. It is not asked again.
    streamless: Arc<AtomicBool>,
    write_limiter: Arc<Semaphore>,
    watch_pool: Arc<WatchPool>,
    /// What writes have to pass.
    fence: Option<Fence>,
    /// As whom requests are made, if not as who we are.
    impersonation: Option<Arc<Impersonation>>,
}

enum Origin {
    Files(Vec<PathBuf>),
    Pod,
}

// === impl Source ===

impl Source {
    /// Connects lazily: this reads the credentials, and the first call talks to the server. The reloading task belongs
    /// to the supervisor.
    pub async fn connect(&self, supervisor: &Supervisor, metrics: Metrics) -> Result<Client, ConfigError> {
        let origin = self.origin()?;
        let config = self.load(&origin).await?;
        let server = config.cluster_url.to_string();
        let (sender, current) = watch::channel(build(config, &origin)?);
        if let Origin::Files(files) = origin {
            let (source, guard) = (self.clone(), supervisor.clone());
            let seen = fingerprint(&files);
            supervisor.spawn("kubeconfig", task::Kind::Work, async move {
                tokio::select! {
                    () = source.reload(files, seen, sender) => {}
                    () = guard.stopping() => {}
                }
            });
        }
        let server = server.trim_end_matches('/').to_owned();
        Ok(Client::over(current, server, metrics))
    }

    fn origin(&self) -> Result<Origin, ConfigError> {
        let split = |value: OsString| -> Vec<PathBuf> {
            env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
        };
        let named = match &self.kubeconfig {
            Some(path) if path.exists() => vec![path.clone()],
            // Several, as in the variable.
            Some(path) => split(path.clone().into_os_string()),
            None => env::var_os("KUBECONFIG").map(split).unwrap_or_default(),
        };
        if !named.is_empty() {
            return Ok(Origin::Files(named));
        }
        let in_pod = kube::Config::incluster();
        let home = env::home_dir().map(|home| home.join(".kube/config")).filter(|path| path.exists());
        match (in_pod, home) {
            (Ok(_), _) => Ok(Origin::Pod),
            (Err(_), Some(path)) => Ok(Origin::Files(vec![path])),
            (Err(error), None) => Err(ConfigError::Missing { reason: pod_reason(&error) }),
        }
    }

    async fn load(&self, origin: &Origin) -> Result<kube::Config, ConfigError> {
        let mut config = match origin {
            Origin::Pod => kube::Config::incluster()
                .map_err(|error| ConfigError::Missing { reason: pod_reason(&error) })?,
            Origin::Files(files) => from_files(files).await?,
        };
        if let Some(address) = &self.server {
            config.cluster_url =
                address.parse().map_err(|_| ConfigError::Address { address: address.clone() })?;
        }
        // The controllers retry by themselves, for ever, and know better when.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(10));
        // Input for a process that does not read it waits in the connection, for as long as the process likes.
        config.write_timeout = None;
        Ok(config)
    }

    async fn reload(&self, files: Vec<PathBuf>, mut seen: Vec<Vec<u8>>, sender: watch::Sender<Transport>) {
        loop {
            tokio::time::sleep(RELOAD_PERIOD).await;
            let now = fingerprint(&files);
            if now == seen {
                continue;
            }
            let origin = Origin::Files(files.clone());
            let loaded = match self.load(&origin).await {
                Ok(config) => build(config, &origin),
                Err(error) => Err(error),
            };
            match loaded {
                Ok(client) => {
                    info!("the kubeconfig changed: using the new credentials");
                    sender.send_replace(client);
                }
                // Half-written files are common while somebody copies them: keep what works, and look again.
                Err(error) => {
                    warn!(%error, "the kubeconfig changed and cannot be used: keeping the old credentials");
                }
            }
            seen = now;
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

/// Reads one file. Paths in it are relative to it.
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

fn build(config: kube::Config, origin: &Origin) -> Result<Transport, ConfigError> {
    Transport::new(config).map_err(|reason| {
        let path = match origin {
            Origin::Files(files) => files.first().cloned().unwrap_or_default(),
            Origin::Pod => PathBuf::from("of the Pod"),
        };
        ConfigError::Malformed { path, reason }
    })
}

/// The kubeconfigs and every file they name, as they are now. Unreadable files count as empty.
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
    /// A client that is not reloaded, for callers that have made one themselves.
    pub fn fixed(client: kube::Client, metrics: Metrics) -> Self {
        let (_, current) = watch::channel(Transport::single(client));
        Self::over(current, "the API server".to_owned(), metrics)
    }

    fn over(current: watch::Receiver<Transport>, server: String, metrics: Metrics) -> Self {
        Self {
            current,
            server,
            metrics,
            streamless: Arc::default(),
            write_limiter: write_limiter(),
            watch_pool: Arc::default(),
            fence: None,
            impersonation: None,
        }
    }

    /// The same client with a fence: it and its clones write only while the fence is open.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// The same client without one: for the lease itself, whose writes carry a precondition.
    #[must_use]
    pub fn unfenced(&self) -> Self {
        Self { fence: None, ..self.clone() }
    }

    /// What writes have to pass, if anything.
    pub fn fence(&self) -> Option<&Fence> {
        self.fence.as_ref()
    }

    /// The same client, whose requests are made as a node: the API server lets it do what that node's kubelet may do and no
    /// more, if we may impersonate the node (`impersonate` on the user `system:node:NAME` and on the groups `system:nodes`
    /// and `system:authenticated`). It shares the connection, the write_limiter and the fence.
    #[must_use]
    pub fn impersonating(&self, node: &str) -> Self {
        Self { impersonation: Some(Arc::new(Impersonation::of_node(node))), ..self.clone() }
    }

    /// The address of the API server, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// kube-rs' client with the credentials of this moment, for calls.
    pub fn kube(&self) -> kube::Client {
        self.transport(|transport| transport.calls.clone())
    }

    /// The same for watches.
    pub(crate) fn kube_for_watches(&self) -> kube::Client {
        self.transport(|transport| transport.watches.clone())
    }

    /// One of the clients of this moment.
    fn transport(&self, pick: impl FnOnce(&Transport) -> kube::Client) -> kube::Client {
        let current = self.current.borrow();
        match &self.impersonation {
            Some(impersonation) => impersonation.over(&current, pick),
            None => pick(&current),
        }
    }

    /// The same for watches that have a place on a watch_slot.
    pub(crate) fn kube_on(&self, watch_slot: &WatchSlot) -> kube::Client {
        let client = self.current.borrow().watch_pool[watch_slot.number].clone();
        match &self.impersonation {
            // For each watch anew: there are many watch_pool, and few of a node's watches on each.
            Some(impersonation) => impersonation.wrap(&client),
            None => client,
        }
    }

    /// A place for the watch of a single object; `None` when all are taken. Clones share the places.
    pub fn watch_slot(&self) -> Option<WatchSlot> {
        self.watch_pool.place()
    }

    /// Whether newer credentials came since this clone was last asked.
    #[cfg(test)]
    fn renewed(&mut self) -> bool {
        let renewed = self.current.has_changed().unwrap_or(false);
        self.current.mark_unchanged();
        renewed
    }

    /// Whether the server may be asked to stream a listing.
    pub(crate) fn streams(&self) -> bool {
        !self.streamless.load(Ordering::Relaxed)
    }

    /// The server cannot stream listings. Tells whether this is news.
    pub(crate) fn forgo_streams(&self) -> bool {
        !self.streamless.swap(true, Ordering::Relaxed)
    }

    /// Turns for writes of which there may be thousands at once. A call that waits inside of the client would use up its
    /// time there, and then begin anew; whoever has many to make waits for a turn before each.
    pub fn write_limiter(&self) -> Arc<Semaphore> {
        Arc::clone(&self.write_limiter)
    }

    /// Makes a request that changes something, if the fence lets it.
    pub(crate) async fn write<T>(
        &self,
        request: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        match &self.fence {
            Some(fence) => fence.guard(request).await?,
            None => request.await,
        }
    }

    /// Where its calls are counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

fn write_limiter() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(CONCURRENT_WRITES))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn kubeconfig(server: &str, token: &str) -> String {
        let mut text = String::from("apiVersion: v1\nkind: Config\ncurrent-context: main\n");
        write!(
            text,
            "clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n\
             contexts: [{{name: main, context: {{cluster: c, user: u}}}}]\n"
        )
        .unwrap();
        text
    }

    async fn connect(path: PathBuf) -> Result<Client, ConfigError> {
        let source = Source { kubeconfig: Some(path), server: None };
        source.connect(&Supervisor::new(), Metrics::default()).await
    }

    async fn refusal(path: PathBuf) -> String {
        connect(path).await.err().expect("it must be refused").to_string()
    }

    #[tokio::test]
    async fn a_missing_or_malformed_kubeconfig_is_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let missing = refusal(dir.path().join("nowhere")).await;
        assert!(missing.contains("nowhere") && missing.contains("--kubeconfig"), "{missing}");

        let broken = dir.path().join("broken");
        fs::write(&broken, "clusters: [").unwrap();
        let malformed = refusal(broken).await;
        assert!(malformed.contains("broken") && !malformed.contains('\n'), "{malformed}");

        let empty = dir.path().join("empty");
        fs::write(&empty, "apiVersion: v1\nkind: Config\n").unwrap();
        let without_context = refusal(empty).await;
        assert!(without_context.contains("empty"), "{without_context}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_kubeconfig_is_used_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        fs::write(&path, kubeconfig("http://127.0.0.1:1", "a")).unwrap();
        let mut client = connect(path.clone()).await.unwrap();
        assert!(!client.renewed());

        fs::write(&path, kubeconfig("http://127.0.0.1:1", "b")).unwrap();
        tokio::time::sleep(RELOAD_PERIOD * 2).await;
        assert!(client.renewed());

        fs::write(&path, "half-writ").unwrap();
        tokio::time::sleep(RELOAD_PERIOD * 2).await;
        assert!(!client.renewed());
    }
}
