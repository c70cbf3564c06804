//! A control plane on this machine with virtual nodes in it, to try things out.

#[cfg(feature = "local")]
mod demo;
mod guardian;
mod state;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use tokio::{task::spawn_blocking, time::Instant};
use vk_control_plane::{self as control_plane, ControlPlane, kubectl};

use self::guardian::Guardian;
use crate::{
    Registry,
    cli::Failure,
    config::{Resolved, Tls},
    run::{self, INTERRUPTED, Running, Stop},
};

pub use self::{guardian::guard, state::State};

/// How long the nodes may take to become Ready.
const LIMIT: Duration = Duration::from_mins(1);
/// How long work that was begun may take to end, when nobody waits for its result any more.
const QUIET: Duration = Duration::from_secs(10);

/// What the user asked of `virtual-kubelet dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the control plane keeps its data; a temporary folder when absent.
    pub data_dir: Option<PathBuf>,
    /// Where to write a kubeconfig of an administrator; within the data folder when absent.
    pub kubeconfig_out: Option<PathBuf>,
    /// Whether to start the scheduler and the controller manager beside the API server.
    pub controllers: bool,
    /// Whether to show pods, where the nodes run any.
    pub demo: bool,
}

/// Everything that `dev` has brought up.
struct Stage<'a> {
    running: &'a Running,
    cluster: &'a ControlPlane,
    kubeconfig: &'a Path,
    begin: Instant,
    ready: Duration,
    #[cfg(feature = "local")]
    demo: Option<demo::Demo>,
    /// Whether pods are to be shown.
    #[cfg(feature = "local")]
    wanted: bool,
}

/// Starts the control plane and the nodes of the configuration, shows them, and stays until a signal comes. Nothing is
/// left behind then but the kubeconfig and a data folder that the user named.
pub async fn run(
    options: Options,
    state: State,
    config: Resolved,
    registry: Registry,
) -> Result<(), Failure> {
    let mut stop = Stop::listen()?;
    #[cfg(feature = "local")]
    let config = demo::modest(config);
    let guardian = Guardian::start(state, &config)?;
    // It has threads of its own, so that one can wait for their end: work on the disk and on the network goes on when nobody waits for
    // its result any more, and would make anew what is being removed.
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let threads = threads.context("cannot start threads")?;
    let played = spawn_blocking(move || {
        let outcome = threads.block_on(Box::pin(play(options, config, registry, &mut stop)));
        (outcome, stop, threads)
    });
    let (outcome, mut stop, threads) = played.await.context("the nodes' thread panicked")?;
    // Whatever came of it: what the nodes ran goes now.
    let removed = async {
        drop(spawn_blocking(move || threads.shutdown_timeout(QUIET)).await);
        guardian.end().await
    };
    tokio::select! {
        removed = removed => removed?,
        _ = stop.signal() => std::process::exit(INTERRUPTED),
    }
    outcome
}

async fn play(
    options: Options,
    mut config: Resolved,
    registry: Registry,
    stop: &mut Stop,
) -> Result<(), Failure> {
    let begin = Instant::now();
    say("Starting etcd, kube-apiserver and the rest of the control plane ...")?;
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
        started = starting => started.context("cannot start the control plane")?,
        _ = stop.signal() => return Ok(()),
    };
    let ready = begin.elapsed();
    let kubeconfig = match options.kubeconfig_out {
        Some(path) => write_kubeconfig(&cluster, &path)?,
        None => cluster.admin_kubeconfig().to_owned(),
    };
    // Whatever the environment said: this is the cluster that is meant.
    config.kubeconfig = Some(kubeconfig.clone());
    config.api_server = None;
    config.bootstrap_kubeconfig = None;
    config.tls = certified(&cluster, &config)?;

    let running = tokio::select! {
        started = Box::pin(run::start(config, registry)) => started?,
        _ = stop.signal() => return Ok(()),
    };
    #[cfg(not(feature = "local"))]
    let () = demo;
    let stage = Stage {
        running: &running,
        cluster: &cluster,
        kubeconfig: &kubeconfig,
        begin,
        ready,
        #[cfg(feature = "local")]
        demo,
        #[cfg(feature = "local")]
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
    drop(cluster);
    outcome
}

// === impl Stage ===

impl Stage<'_> {
    async fn show(&self) -> anyhow::Result<()> {
        let late = || anyhow::anyhow!("the nodes are not Ready after {LIMIT:?}: see the log above");
        tokio::time::timeout(LIMIT, self.running.ready()).await.map_err(|_| late())?;
        say(&format!(
            "The control plane is ready after {}, its nodes after {}.",
            seconds(self.ready),
            seconds(self.begin.elapsed())
        ))?;
        self.kubectl(&["get", "nodes", "-o", "wide"]).await?;
        let hints = self.hints().await?;
        let program = self.cluster.kubectl().context("cannot find kubectl")?;
        say(&format!(
            "\nTry it from another terminal:\n\n  export KUBECONFIG={}\n  alias kubectl={}\n\n{hints}  \
             kubectl describe node\n  kubectl get events\n\nCtrl-C stops everything and leaves nothing behind.",
            self.kubeconfig.display(),
            program.display(),
        ))
    }

    /// What can be tried, after what is shown first.
    #[cfg_attr(
        not(feature = "local"),
        expect(clippy::unused_async, reason = "pods are shown with the provider local")
    )]
    async fn hints(&self) -> anyhow::Result<String> {
        #[cfg(feature = "local")]
        if let Some(demo) = &self.demo {
            return if self.wanted { demo.show(self).await } else { Ok(demo.hints(None)) };
        }
        let hints = [
            "kubectl create deployment hello --image=hello --replicas=3",
            "kubectl get pods -o wide",
            "kubectl logs deploy/hello",
            "kubectl exec deploy/hello -- hostname",
        ];
        Ok(indented(&hints))
    }

    /// Shows a command and what it answers.
    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = kubectl(self.cluster, arguments).await.context("cannot run kubectl")?;
        let shown: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
        // Beside an answer, it has only remarks to make.
        let answer = if output.success() { output.stdout } else { output.stdout + &output.stderr };
        say(&format!("\n$ kubectl {}\n{}", shown.join(" "), answer.trim_end_matches('\n')))
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@".contains(letter);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Commands, one in a line.
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

/// A serving certificate for all nodes, of the authority by which the API server knows kubelets. Nobody has to approve it.
fn certified(cluster: &ControlPlane, config: &Resolved) -> anyhow::Result<Tls> {
    let detected = run::address::internal_ip(cluster.url());
    let mut names: Vec<String> = config.nodes.iter().map(|node| node.name.clone()).collect();
    let ips = config.nodes.iter().flat_map(|node| [node.internal_ip, node.address]).flatten();
    names.extend(ips.chain([detected]).map(|ip| ip.to_string()));
    names.sort();
    names.dedup();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let certificate = cluster
        .serving_certificate("virtual-kubelet", &names)
        .context("cannot make a certificate for the nodes")?;
    let folder = cluster.data_dir().join("pki");
    let write = |file: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(file);
        private(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
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

/// Writes a file that only its owner may read.
fn private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

fn write_kubeconfig(cluster: &ControlPlane, path: &Path) -> anyhow::Result<PathBuf> {
    let absolute = std::path::absolute(path).with_context(|| format!("{} is not a path", path.display()))?;
    let told = || format!("cannot write the kubeconfig {}", absolute.display());
    if let Some(folder) = absolute.parent() {
        std::fs::create_dir_all(folder).with_context(told)?;
    }
    cluster.write_kubeconfig(&absolute, "admin", &["system:masters"]).with_context(told)?;
    Ok(absolute)
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("cannot write to standard output")
}
