//! Who is measured, and how each is started.

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

/// The node that the pods are bound to.
pub(crate) const NODE: &str = "bench";
/// kwok does what its stages say.
const STAGES: &str = include_str!("../../dev/rivals/kwok/kwok.yaml");
/// What kwok says for defaults, with the numbers at a time lifted.
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
/// Workers where the Go original's number of them is lifted: as many as the bare client has requests under way.
const WORKERS: &str = "64";

/// One that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contestant {
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
}

impl Contestant {
    /// What stands over its column.
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
        }
    }

    /// The rival behind it, as `dev/rivals/build` calls it.
    fn rival(self) -> Option<&'static str> {
        match self {
            Self::Bare | Self::Ours | Self::Local | Self::Kubelet => None,
            Self::GoAsShipped | Self::GoUnlimited => Some("virtual-kubelet"),
            Self::Kwok | Self::KwokUnlimited => Some("kwok"),
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// Who takes part.
#[derive(Debug, Args)]
pub(crate) struct Field {
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Contestant::value_variants().to_vec())]
    only: Vec<Contestant>,
    /// The command of ours to measure
    #[arg(long)]
    virtual_kubelet: PathBuf,
    /// The script that builds a rival and prints where it is
    #[arg(long)]
    rivals: PathBuf,
}

impl Field {
    /// Leaves out all but these, where a question is not for the others.
    pub(crate) fn keep(&mut self, these: &[Contestant]) {
        self.only.retain(|contestant| these.contains(contestant));
    }

    /// Leaves those out who run real containers, where a question is not for them.
    pub(crate) fn without_containers(&mut self) {
        self.only.retain(|other| !matches!(other, Contestant::Local | Contestant::Kubelet));
    }

    /// Makes everything ready that those who take part need, before the first is measured.
    pub(crate) fn prepare(&self, logs: &Path) -> anyhow::Result<Prepared> {
        fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let mut programs = BTreeMap::new();
        for name in self.only.iter().filter_map(|contestant| contestant.rival()) {
            if programs.contains_key(name) {
                continue;
            }
            let output = Command::new(&self.rivals)
                .arg(name)
                .stderr(Stdio::inherit())
                .output()
                .with_context(|| format!("cannot run {}", self.rivals.display()))?;
            anyhow::ensure!(output.status.success(), "the rival {name} is not there");
            programs.insert(name, PathBuf::from(String::from_utf8(output.stdout)?.trim()));
        }
        let mut contestants = self.only.clone();
        contestants.sort();
        contestants.dedup();
        Ok(Prepared { contestants, ours: self.virtual_kubelet.clone(), programs, logs: logs.to_owned() })
    }
}

/// Those who take part, ready to start.
pub(crate) struct Prepared {
    /// In the order of the table's columns.
    pub(crate) contestants: Vec<Contestant>,
    ours: PathBuf,
    programs: BTreeMap<&'static str, PathBuf>,
    logs: PathBuf,
}

impl Prepared {
    /// Its version. A rival's program has it in its name.
    pub(crate) fn version(&self, contestant: Contestant) -> Option<String> {
        match contestant {
            // The kubelet's is that of the whole control plane.
            Contestant::Bare | Contestant::Kubelet => None,
            Contestant::Ours | Contestant::Local => Some(concat!("v", env!("CARGO_PKG_VERSION")).to_owned()),
            rival => {
                let name = self.programs.get(rival.rival()?)?.file_name()?.to_str()?;
                Some(format!("v{}", name.rsplit_once("-v")?.1))
            }
        }
    }

    /// The command that runs one node called [`NODE`] with room for all pods.
    pub(crate) fn one_node(&self, who: Contestant, cluster: &ControlPlane) -> anyhow::Result<Command> {
        if who != Contestant::Ours {
            return self.rival(who, cluster);
        }
        let config = cluster.data_dir().join("mock.yaml");
        fs::write(&config, "default: {cpu: 100k, memory: 100Ti, pods: 100k}\n")?;
        let mut command = Command::new(&self.ours);
        command.args(["run", "--provider", "mock", "--nodename", NODE, "--metrics-addr", "off"]);
        // Ports from 20000 on are for the control plane.
        // Nobody would approve a certificate.
        command.args(["--log-level", "warn", "--port", "11999", "--rotate-server-certificates=false"]);
        command.arg("--provider-config").arg(&config).arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        Ok(command)
    }

    /// The command that runs `count` nodes. kwok makes none: it takes those that it finds.
    pub(crate) fn many_nodes(
        &self,
        who: Contestant,
        cluster: &ControlPlane,
        count: usize,
    ) -> anyhow::Result<Command> {
        match who {
            Contestant::Bare => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["bare-nodes", "--count", &count.to_string()]);
                command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
                Ok(command)
            }
            Contestant::Ours => {
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

    fn rival(&self, who: Contestant, cluster: &ControlPlane) -> anyhow::Result<Command> {
        let name = who.rival().context("not a rival")?;
        let mut command = Command::new(self.programs.get(name).context("the rival is not ready")?);
        match who {
            Contestant::GoUnlimited => {
                command.args(["--node", NODE, "--unlimited", "--workers", WORKERS]);
            }
            Contestant::GoAsShipped => {
                command.args(["--node", NODE]);
            }
            _ => {
                // A configuration of its own in the file would keep kwok from filling in its defaults: flags where they do.
                let head = if who == Contestant::KwokUnlimited { LIFTED } else { "" };
                let config = cluster.data_dir().join("kwok.yaml");
                fs::write(&config, format!("{head}{STAGES}"))?;
                command.args(["--manage-all-nodes=true", "--node-lease-duration-seconds=40", "-v", "WARN"]);
                command.arg("--config").arg(&config);
            }
        }
        command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        Ok(command)
    }

    /// The command of ours.
    pub(crate) fn ours(&self) -> &Path {
        &self.ours
    }

    /// Where somebody's words go.
    pub(crate) fn log(&self, who: Contestant, what: &str) -> PathBuf {
        self.logs.join(format!("{what}-{who:?}.log").to_lowercase())
    }

    /// Starts a command, with what it says in a file of its own.
    pub(crate) fn start(&self, who: Contestant, what: &str, mut command: Command) -> anyhow::Result<Process> {
        let path = self.log(who, what);
        let log = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Process::spawn(&mut command).with_context(|| format!("cannot start {who}"))
    }
}

/// Makes a node for one that makes none itself.
pub(crate) async fn make_node(nodes: &Api<Node>, name: &str) -> anyhow::Result<()> {
    let node = json!({"metadata": {"name": name, "labels": {"type": "kwok"}},
        "spec": {"taints": [{"key": "bench", "effect": "NoSchedule"}]}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    Ok(())
}

/// Whether this one needs [`make_node`].
pub(crate) fn takes_nodes(who: Contestant) -> bool {
    matches!(who, Contestant::Kwok | Contestant::KwokUnlimited)
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
