//! The programs that are measured, and how they are started.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::PostParams};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;
use vk_testing::{ControlPlane, Process};

/// The node of the pods.
pub(crate) const NODE: &str = "bench";
/// The stages that kwok simulates.
const STAGES: &str = include_str!("../../dev/rivals/kwok/kwok.yaml");
/// kwok's defaults with higher parallelism.
const LIFTED: &str = "apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  cidr: 10.0.0.0/24
  podPlayStageParallelism: 64
  nodePlayStageParallelism: 64
  nodeLeaseParallelism: 64
  podsOnNodeSyncParallelism: 1
  enablePodsOnNodeSyncListPager: true
---
";
/// Workers of the Go original without limits: as many as the bare client has requests under way.
const WORKERS: &str = "64";

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Candidate {
    /// A client that makes the same writes and nothing else: the API server's own limit
    Bare,
    /// This project, with the mock provider where nothing else is said
    Ours,
    /// The Go original on its nodeutil package, as that comes
    GoAsShipped,
    /// The same without the client's limit, and with more workers
    GoUnlimited,
    /// kwok, as it comes
    Kwok,
    /// kwok with more workers
    KwokUnlimited,
    /// This project with the provider local: containers without a runtime beside it
    Local,
    /// The real kubelet, where containers run
    Kubelet,
    /// This project with the provider eci, on an emulator of the cloud
    #[value(skip)]
    Eci,
    /// kube-scheduler without an extender
    #[value(skip)]
    NoExtender,
    /// kube-scheduler with an extender of the bench that passes everything
    #[value(skip)]
    BareExtender,
    /// The API server without a conversion of pods
    #[value(skip)]
    Unconverted,
    /// The API server with our admission policy
    #[value(skip)]
    Policy,
    /// The API server with our webhook
    #[value(skip)]
    Webhook,
    /// What ours is meant to reach
    #[value(skip)]
    Goal,
}

impl Candidate {
    /// The title of its column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Bare => "bare client",
            Self::Ours => "virtual-kubelet (this)",
            Self::Local => "virtual-kubelet (this), local",
            Self::GoAsShipped => "Go original, as shipped",
            Self::GoUnlimited => "Go original, limits lifted",
            Self::Kwok => "kwok, as shipped",
            Self::KwokUnlimited => "kwok, limits lifted",
            Self::Kubelet => "kubelet",
            Self::Eci => "virtual-kubelet (this), eci",
            Self::NoExtender => "no extender",
            Self::BareExtender => "extender that passes all",
            Self::Unconverted => "plain create",
            Self::Policy => "policy",
            Self::Webhook => "webhook",
            Self::Goal => "goal",
        }
    }

    /// Its name in `dev/rivals/build`, if it is a rival.
    fn rival(self) -> Option<&'static str> {
        match self {
            Self::GoAsShipped | Self::GoUnlimited => Some("virtual-kubelet"),
            Self::Kwok | Self::KwokUnlimited => Some("kwok"),
            _ => None,
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// Options that select the candidates.
#[derive(Debug, Args)]
pub(crate) struct CandidateArgs {
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Candidate::value_variants().to_vec())]
    only: Vec<Candidate>,
    /// The command of ours to measure
    #[arg(long)]
    virtual_kubelet: PathBuf,
    /// The script that builds a rival and prints where it is
    #[arg(long)]
    rivals: PathBuf,
}

impl CandidateArgs {
    /// Keeps only these candidates.
    pub(crate) fn keep(&mut self, these: &[Candidate]) {
        self.only.retain(|candidate| these.contains(candidate));
    }

    /// Removes the candidates that need a container runtime.
    pub(crate) fn without_containers(&mut self) {
        self.only.retain(|other| !matches!(other, Candidate::Local | Candidate::Kubelet));
    }

    /// Builds all rivals before the first candidate is measured.
    pub(crate) fn prepare(&self, logs: &Path) -> anyhow::Result<Candidates> {
        fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let mut programs = BTreeMap::new();
        for name in self.only.iter().filter_map(|candidate| candidate.rival()) {
            if programs.contains_key(name) {
                continue;
            }
            let output = Command::new(&self.rivals)
                .arg(name)
                .stderr(Stdio::inherit())
                .output()
                .with_context(|| format!("cannot run {}", self.rivals.display()))?;
            anyhow::ensure!(output.status.success(), "the rival {name} could not be built");
            programs.insert(name, PathBuf::from(String::from_utf8(output.stdout)?.trim()));
        }
        let mut candidates = self.only.clone();
        candidates.sort();
        candidates.dedup();
        Ok(Candidates {
            selected: candidates,
            ours: self.virtual_kubelet.clone(),
            programs,
            logs: logs.to_owned(),
        })
    }
}

/// The selected candidates, ready to start.
pub(crate) struct Candidates {
    /// In the order of the columns.
    pub(crate) selected: Vec<Candidate>,
    ours: PathBuf,
    programs: BTreeMap<&'static str, PathBuf>,
    logs: PathBuf,
}

impl Candidates {
    /// The version of a candidate. A rival's program has it in its name.
    pub(crate) fn version(&self, candidate: Candidate) -> Option<String> {
        match candidate {
            Candidate::Ours | Candidate::Local | Candidate::Eci => {
                Some(concat!("v", env!("CARGO_PKG_VERSION")).to_owned())
            }
            // Others that are no rivals have none: the kubelet's is that of the whole control plane.
            rival => {
                let name = self.programs.get(rival.rival()?)?.file_name()?.to_str()?;
                Some(format!("v{}", name.rsplit_once("-v")?.1))
            }
        }
    }

    /// The command that runs one node called [`NODE`] with capacity for all pods.
    pub(crate) fn one_node(&self, who: Candidate, cluster: &ControlPlane) -> anyhow::Result<Command> {
        if who != Candidate::Ours {
            return self.rival(who, cluster);
        }
        self.our_node(cluster, "mock", "default: {cpu: 100k, memory: 100Ti, pods: 100k}\n")
    }

    /// The command that runs one node of a provider of ours with this configuration.
    pub(crate) fn our_node(
        &self,
        cluster: &ControlPlane,
        provider: &str,
        config: &str,
    ) -> anyhow::Result<Command> {
        let path = cluster.data_dir().join(format!("{provider}.yaml"));
        fs::write(&path, config)?;
        let mut command = Command::new(&self.ours);
        command.args(["run", "--provider", provider, "--nodename", NODE, "--metrics-addr", "off"]);
        // Ports from 20000 on are for the control plane.
        // Nobody would approve a certificate.
        command.args(["--log-level", "warn", "--port", "11999", "--rotate-server-certificates=false"]);
        command.arg("--provider-config").arg(&path).arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        Ok(command)
    }

    /// The command that runs `count` nodes. kwok creates none: it manages existing ones.
    pub(crate) fn many_nodes(
        &self,
        who: Candidate,
        cluster: &ControlPlane,
        count: usize,
    ) -> anyhow::Result<Command> {
        match who {
            Candidate::Bare => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["bare-nodes", "--count", &count.to_string()]);
                command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
                Ok(command)
            }
            Candidate::Ours => {
                let config = cluster.data_dir().join("vk.yaml");
                let nodes = format!(
                    "{{count: {count}, namePattern: 'vk-{{}}', portBase: 11000, address: 127.0.0.1}}"
                );
                fs::write(&config, format!("provider: mock\nmetricsAddr: 'off'\nnodes:\n- {nodes}\n"))?;
                let mut command = Command::new(&self.ours);
                command.args(["run", "--log-level", "warn", "--rotate-server-certificates=false"]);
                command.arg("--config").arg(&config);
                command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
                Ok(command)
            }
            rival => self.rival(rival, cluster),
        }
    }

    fn rival(&self, who: Candidate, cluster: &ControlPlane) -> anyhow::Result<Command> {
        let name = who.rival().context("not a rival")?;
        let mut command = Command::new(self.programs.get(name).context("the rival is not ready")?);
        match who {
            Candidate::GoUnlimited => {
                command.args(["--node", NODE, "--unlimited", "--workers", WORKERS]);
            }
            Candidate::GoAsShipped => {
                command.args(["--node", NODE]);
            }
            _ => {
                // A configuration of its own in the file would keep kwok from filling in its defaults: flags where they do.
                let head = if who == Candidate::KwokUnlimited { LIFTED } else { "" };
                let config = cluster.data_dir().join("kwok.yaml");
                fs::write(&config, format!("{head}{STAGES}"))?;
                command.args(["--manage-all-nodes=true", "--node-lease-duration-seconds=40", "-v", "WARN"]);
                command.arg("--config").arg(&config);
            }
        }
        command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        Ok(command)
    }

    /// The path of our program.
    pub(crate) fn ours(&self) -> &Path {
        &self.ours
    }

    /// The path of a log file.
    pub(crate) fn log(&self, who: Candidate, what: &str) -> PathBuf {
        self.logs.join(format!("{what}-{who:?}.log").to_lowercase())
    }

    /// Starts a command with its output in a log file.
    pub(crate) fn start(&self, who: Candidate, what: &str, mut command: Command) -> anyhow::Result<Process> {
        let path = self.log(who, what);
        let log = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Process::spawn(&mut command).with_context(|| format!("cannot start {who}"))
    }
}

/// Creates a node for a candidate that creates none.
pub(crate) async fn create_node(nodes: &Api<Node>, name: &str) -> anyhow::Result<()> {
    let node = json!({"metadata": {"name": name, "labels": {"type": "kwok"}},
        "spec": {"taints": [{"key": "bench", "effect": "NoSchedule"}]}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    Ok(())
}

/// Whether this one needs [`create_node`].
pub(crate) fn takes_nodes(who: Candidate) -> bool {
    matches!(who, Candidate::Kwok | Candidate::KwokUnlimited)
}

/// Waits until the node is Ready.
pub(crate) async fn ready(nodes: &Api<Node>, process: &mut Process) -> anyhow::Result<()> {
    let begun = Instant::now();
    while nodes.get_opt(NODE).await?.is_none_or(|node| !is_ready(&node)) {
        anyhow::ensure!(process.ended()?.is_none(), "it ended: see its log");
        anyhow::ensure!(begun.elapsed() < Duration::from_mins(1), "the node is not Ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Whether a node is Ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_the_versions_that_are_measured() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = fs::read_to_string(root.join("docs/reference/performance.md")).unwrap();
        for (name, module) in
            [("virtual-kubelet", "github.com/virtual-kubelet/virtual-kubelet"), ("kwok", "sigs.k8s.io/kwok")]
        {
            let pins = fs::read_to_string(root.join("dev/rivals").join(name).join("go.mod")).unwrap();
            let line = pins.lines().find_map(|line| line.trim().strip_prefix(module)).unwrap();
            let version = line.split_whitespace().next().unwrap();
            assert!(
                page.contains(&format!("{module} {version}")),
                "the page does not name {module} {version}"
            );
        }
    }
}
