//! A control plane on this machine with virtual nodes in it, to try things out.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use vk_testing::{ControlPlane, control_plane, kubectl};

use crate::{
    Registry,
    cli::Failure,
    config::{Resolved, Tls},
    run::{self, Stop},
};

/// How long the nodes may take to become Ready.
const LIMIT: Duration = Duration::from_mins(1);

/// What the user asked of `virtual-kubelet dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the control plane keeps its data; a temporary folder when absent.
    pub data_dir: Option<PathBuf>,
    /// Where to write a kubeconfig of an administrator; within the data folder when absent.
    pub kubeconfig_out: Option<PathBuf>,
    /// Whether to start the scheduler and the controller manager beside the API server.
    pub controllers: bool,
}

/// Starts the control plane and the nodes of the configuration, shows them, and stays until a signal comes. Nothing is
/// left behind then but the kubeconfig and a data folder that the user named.
pub async fn run(options: Options, mut config: Resolved, registry: Registry) -> Result<(), Failure> {
    let mut stop = Stop::listen()?;
    say("Starting etcd, kube-apiserver and the rest of the control plane ...")?;
    let starting = ControlPlane::start(control_plane::Options {
        controllers: options.controllers,
        data_dir: options.data_dir,
        ..control_plane::Options::default()
    });
    let cluster = tokio::select! {
        started = Box::pin(starting) => started.context("cannot start the control plane")?,
        _ = stop.signal() => return Ok(()),
    };
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
    let shown = tokio::select! {
        shown = tokio::time::timeout(LIMIT, show(&running, &cluster, &kubeconfig)) => shown,
        _ = stop.signal() => Ok(Ok(())),
    };
    let late = || anyhow::anyhow!("the nodes are not Ready after {LIMIT:?}: see the log above");
    let outcome = match shown.map_err(|_| late()).and_then(|shown| shown) {
        Ok(()) => running.until(stop).await,
        Err(error) => Err(error.into()),
    };
    drop(cluster);
    outcome
}

async fn show(running: &run::Running, cluster: &ControlPlane, kubeconfig: &Path) -> anyhow::Result<()> {
    running.ready().await;
    let nodes = kubectl(cluster, ["get", "nodes", "-o", "wide"]).await.context("cannot run kubectl")?;
    let program = cluster.kubectl().context("cannot find kubectl")?;
    say(&format!(
        "\n$ kubectl get nodes -o wide\n{}\nTry it from another terminal:\n\n  export KUBECONFIG={}\n  alias kubectl={}\n\n  \
         kubectl create deployment hello --image=hello --replicas=3\n  kubectl get pods -o wide\n  \
         kubectl logs deploy/hello\n  kubectl exec deploy/hello -- hostname\n  kubectl describe node\n  kubectl get events\n\nCtrl-C stops everything and leaves nothing behind.",
        nodes.stdout,
        kubeconfig.display(),
        program.display(),
    ))
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
