//! `virtual-kubelet dev`: a local control plane with virtual nodes.

mod cleanup;
#[cfg(feature = "local")]
mod demo;
mod eci;
mod state_dir;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use tokio::{task::spawn_blocking, time::Instant};
use vk_control_plane::{self as control_plane, ControlPlane, kubectl};

use self::cleanup::CleanupProcess;
use crate::{
    Registry,
    cli::Failure,
    config::{EffectiveConfig, Tls},
    run::{self, INTERRUPTED, Running, Stop},
};

pub use self::{cleanup::run_cleanup, state_dir::StateDir};

/// Time limit for the nodes to become Ready.
const LIMIT: Duration = Duration::from_mins(1);
/// Time limit for background work to end after the nodes have stopped.
const QUIET: Duration = Duration::from_secs(10);

/// Options of `virtual-kubelet dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Data directory of the control plane; default a temporary directory.
    pub data_dir: Option<PathBuf>,
    /// Where to write an administrator's kubeconfig; default in the data directory.
    pub kubeconfig_out: Option<PathBuf>,
    /// Whether to start the scheduler and the controller manager.
    pub controllers: bool,
    /// Whether to run demo pods.
    pub demo: bool,
}

/// The running control plane and nodes.
struct DevEnvironment<'a> {
    running: &'a Running,
    cluster: &'a ControlPlane,
    kubeconfig: &'a Path,
    begin: Instant,
    ready: Duration,
    #[cfg(feature = "local")]
    demo: Option<demo::Demo>,
    /// The cloud of the nodes on ECI.
    emulator: Option<&'a eci::Emulated>,
    /// Whether to run demo pods.
    wanted: bool,
}

/// Starts the control plane and the configured nodes, prints them, and runs until a signal. Afterwards only the kubeconfig
/// and a data directory given by the user are left.
pub async fn run(
    options: Options,
    state: StateDir,
    config: EffectiveConfig,
    registry: Registry,
) -> Result<(), Failure> {
    let mut stop = Stop::listen()?;
    #[cfg(feature = "local")]
    let config = demo::lower_disk_limit(config);
    let cleanup_process = CleanupProcess::start(state, &config)?;
    // The nodes run on their own threads, so that we can wait until they end: abandoned disk and network work would otherwise
    // continue and recreate what is being removed.
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let threads = threads.context("start threads")?;
    let finished = spawn_blocking(move || {
        let outcome = threads.block_on(Box::pin(run_nodes(options, config, registry, &mut stop)));
        (outcome, stop, threads)
    });
    let (outcome, mut stop, threads) = finished.await.context("the nodes' thread panicked")?;
    // Always remove what the nodes ran.
    let removed = async {
        drop(spawn_blocking(move || threads.shutdown_timeout(QUIET)).await);
        cleanup_process.end().await
    };
    tokio::select! {
        removed = removed => removed?,
        _ = stop.signal() => std::process::exit(INTERRUPTED),
    }
    outcome
}

async fn run_nodes(
    options: Options,
    mut config: EffectiveConfig,
    registry: Registry,
    stop: &mut Stop,
) -> Result<(), Failure> {
    let begin = Instant::now();
    print("Starting etcd, kube-apiserver and the rest of the control plane ...")?;
    let starting = ControlPlane::start(control_plane::Options {
        controllers: options.controllers,
        data_dir: options.data_dir,
        ..control_plane::Options::default()
    });
    #[cfg(feature = "local")]
    let demo = demo::prepare(&config);
    #[cfg(feature = "local")]
    let starting = async {
        let (started, demo) = tokio::join!(Box::pin(starting), demo);
        started.map(|cluster| (cluster, demo))
    };
    #[cfg(not(feature = "local"))]
    let starting = async { Box::pin(starting).await.map(|cluster| (cluster, ())) };
    let (cluster, demo) = tokio::select! {
        started = starting => started.context("start the control plane")?,
        _ = stop.signal() => return Ok(()),
    };
    // It goes on until the nodes have stopped, and takes its containers along.
    let emulator = eci::start(&mut config).await?;
    let ready = begin.elapsed();
    let kubeconfig = match options.kubeconfig_out {
        Some(path) => write_kubeconfig(&cluster, &path)?,
        None => cluster.admin_kubeconfig().to_owned(),
    };
    // Always use this cluster, regardless of the environment.
    config.kubeconfig = Some(kubeconfig.clone());
    config.api_server = None;
    config.bootstrap_kubeconfig = None;
    config.tls = issue_certificate(&cluster, &config)?;

    let running = tokio::select! {
        started = Box::pin(run::start(config, registry)) => started?,
        _ = stop.signal() => return Ok(()),
    };
    #[cfg(not(feature = "local"))]
    let () = demo;
    let stage = DevEnvironment {
        running: &running,
        cluster: &cluster,
        kubeconfig: &kubeconfig,
        begin,
        ready,
        #[cfg(feature = "local")]
        demo,
        emulator: emulator.as_ref(),
        wanted: options.demo && options.controllers,
    };
    let shown = tokio::select! {
        shown = stage.show() => shown.map(|()| false),
        _ = stop.signal() => Ok(true),
    };
    let outcome = match shown {
        Ok(false) => running.until(stop).await,
        Ok(true) => running.stop(stop).await,
        Err(error) => {
            running.stop(stop).await?;
            Err(error.into())
        }
    };
    drop(emulator);
    drop(cluster);
    outcome
}

// === impl DevEnvironment ===

impl DevEnvironment<'_> {
    async fn show(&self) -> anyhow::Result<()> {
        let late = || anyhow::anyhow!("the nodes are not Ready after {LIMIT:?}; see the log above");
        tokio::time::timeout(LIMIT, self.running.ready()).await.map_err(|_| late())?;
        print(&format!(
            "The control plane is ready after {}, its nodes after {}.",
            seconds(self.ready),
            seconds(self.begin.elapsed())
        ))?;
        self.kubectl(&["get", "nodes", "-o", "wide"]).await?;
        let hints = self.hints().await?;
        let program = self.cluster.kubectl().context("find kubectl")?;
        print(&format!(
            "\nTry it from another terminal:\n\n  export KUBECONFIG={}\n  alias kubectl={}\n\n{hints}  \
             kubectl describe node\n  kubectl get events\n\nCtrl-C stops everything and leaves nothing behind.",
            self.kubeconfig.display(),
            program.display(),
        ))
    }

    /// Commands to try.
    async fn hints(&self) -> anyhow::Result<String> {
        #[cfg(feature = "local")]
        if let Some(demo) = &self.demo {
            return if self.wanted { demo.show(self).await } else { Ok(demo.hints(None)) };
        }
        if let Some(emulator) = self.emulator {
            return emulator.show(self).await;
        }
        let hints = [
            "kubectl create deployment hello --image=hello --replicas=3",
            "kubectl get pods -o wide",
            "kubectl logs deploy/hello",
            "kubectl exec deploy/hello -- hostname",
        ];
        Ok(indented(&hints))
    }

    /// Prints a kubectl command and its output.
    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = kubectl(self.cluster, arguments).await.context("run kubectl")?;
        let shown: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
        // With successful output, standard error only has warnings.
        let answer = if output.success() { output.stdout } else { output.stdout + &output.stderr };
        print(&format!("\n$ kubectl {}\n{}", shown.join(" "), answer.trim_end_matches('\n')))
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@".contains(letter);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Commands, one per line.
fn indented(commands: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for command in commands {
        text.push_str("  ");
        text.push_str(command.as_ref());
        text.push('\n');
    }
    text
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Issues a serving certificate for all nodes from the CA that the API server trusts for kubelets, so no approval is needed.
fn issue_certificate(cluster: &ControlPlane, config: &EffectiveConfig) -> anyhow::Result<Tls> {
    let detected = run::address::internal_ip(cluster.url());
    let mut names: Vec<String> = config
        .nodes
        .iter()
        .flat_map(|node| [Some(node.name.clone()), node.hostname.clone()])
        .flatten()
        .collect();
    let ips = config.nodes.iter().flat_map(|node| [node.internal_ip, node.address]).flatten();
    names.extend(ips.chain([detected]).map(|ip| ip.to_string()));
    names.sort();
    names.dedup();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let certificate = cluster
        .serving_certificate("virtual-kubelet", &names)
        .context("issue a certificate for the nodes")?;
    let folder = cluster.data_dir().join("pki");
    let write = |file: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(file);
        write_private_file(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    };
    let cert = write("virtual-kubelet.crt", &certificate.cert_pem)?;
    let key = write("virtual-kubelet.key", &certificate.key_pem)?;
    Ok(Tls {
        serving: Some((cert, key)),
        client_ca: Some(write("clients.crt", cluster.ca_pem())?),
        request: false,
    })
}

/// Writes a file that only the owner may read.
fn write_private_file(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

fn write_kubeconfig(cluster: &ControlPlane, path: &Path) -> anyhow::Result<PathBuf> {
    let absolute = std::path::absolute(path).with_context(|| format!("{} is not a path", path.display()))?;
    let context = || format!("write the kubeconfig {}", absolute.display());
    if let Some(folder) = absolute.parent() {
        std::fs::create_dir_all(folder).with_context(context)?;
    }
    cluster.write_kubeconfig(&absolute, "admin", &["system:masters"]).with_context(context)?;
    Ok(absolute)
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("write to standard output")
}
