//! A burst of pods that really run: ours with the provider `cri`, and the real kubelet, one after the other, each on a containerd of its own
//! of the same build and with a control plane of its own.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{
    ControlPlane, Usage, control_plane,
    peer::{Containerd, Host as _, Kubelet, Machine as Place, Resident, containerd, image, kubelet},
};

use crate::{
    burst::{Burst, Up},
    contestant::{Contestant, Field, NODE, Prepared, is_ready},
    machine::{Machine, proportional_megabytes},
    report::{Figure, Report, say, thousands},
};

/// Memory is read this long after what it is read for: collectors have run, buffers have gone.
const SETTLE: Duration = Duration::from_secs(5);
/// A kubelet looks at its machine first.
const READY: Duration = Duration::from_mins(2);

#[derive(Debug, Args)]
pub(crate) struct Containers {
    /// How many pods, one run for each number
    #[arg(long, value_delimiter = ',', default_values_t = [100])]
    count: Vec<usize>,
    /// How often; the round in the middle counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The containerd to run them on, in place of the one in PATH
    #[arg(long)]
    containerd: Option<PathBuf>,
    #[command(flatten)]
    field: Field,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

/// Whoever runs the pods.
enum Agent {
    Ours(Resident),
    Kubelet(Kubelet),
}

/// What an agent holds.
struct Held {
    usage: Usage,
    proportional: f64,
}

impl Containers {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // Nobody else runs containers.
        self.field.keep(&[Contestant::Ours, Contestant::Kubelet]);
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::beside(Machine::look()?, Contestant::Kubelet);
        for &contestant in &field.contestants {
            report.versions.extend(field.version(contestant).map(|version| (contestant, version)));
        }
        for &count in &self.count {
            for round in 0..self.rounds {
                for &contestant in &field.contestants {
                    say(&format!("{} containers, {contestant}, round {}", thousands(count), round + 1));
                    let figures = Box::pin(self.one(contestant, &field, count, &mut report)).await;
                    report.outcome(contestant, count, figures)?;
                    report.save(&self.out, "containers")?;
                }
            }
        }
        report.publish(&self.out, "containers")
    }

    async fn one(
        &self,
        who: Contestant,
        field: &Prepared,
        count: usize,
        report: &mut Report,
    ) -> anyhow::Result<Vec<Figure>> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        report.machine.saw(&cluster).await?;
        let namespace = cluster.namespace("bench").await?;
        let pods: Api<Pod> = Api::namespaced(cluster.admin()?, namespace.name());
        let mut options = containerd::Options::default();
        options.program = self.containerd.clone().unwrap_or(options.program);
        let containerd = Containerd::start(Place::any(), options).await;
        report.runtime = Some(format!("containerd {}", containerd.version()));

        let agent = Agent::start(who, field, &containerd, &cluster, &format!("containers-{count}")).await?;
        let figures = burst(&agent, &containerd, &cluster, pods, count).await;
        if let Agent::Kubelet(kubelet) = &agent {
            // Its folder goes with the machine.
            let said = kubelet.folder().join("kubelet.log");
            fs::copy(said, field.log(who, &format!("containers-{count}")))?;
        }
        figures
    }
}

// === impl Agent ===

impl Agent {
    async fn start(
        who: Contestant,
        field: &Prepared,
        containerd: &Containerd,
        cluster: &ControlPlane,
        what: &str,
    ) -> anyhow::Result<Self> {
        if who == Contestant::Kubelet {
            let options = kubelet::Options { node: NODE.to_owned(), features: Vec::new() };
            return Ok(Self::Kubelet(Kubelet::start(containerd, cluster, &options).await));
        }
        let log = File::create(field.log(who, what))?;
        Ok(Self::Ours(ours(field.ours(), containerd, cluster, log).await?))
    }

    fn id(&self) -> u32 {
        match self {
            Self::Ours(resident) => resident.id(),
            Self::Kubelet(kubelet) => kubelet.id(),
        }
    }

    fn look(&self) -> anyhow::Result<Held> {
        let usage = Usage::of(self.id()).context("it ended: see its log")?;
        Ok(Held { usage, proportional: proportional_megabytes(self.id())? })
    }

    /// Waits until its node is Ready.
    async fn ready(&self, nodes: &Api<Node>) -> anyhow::Result<()> {
        let begun = Instant::now();
        while nodes.get_opt(NODE).await?.is_none_or(|node| !is_ready(&node)) {
            self.look()?;
            anyhow::ensure!(begun.elapsed() < READY, "the node is not Ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Starts ours where the kubelet would be, and with the same settings.
async fn ours(
    program: &Path,
    containerd: &Containerd,
    cluster: &ControlPlane,
    log: File,
) -> anyhow::Result<Resident> {
    let machine = containerd.machine();
    let folder = machine.folder();
    let address = machine.addresses()[0].to_string();
    let user = format!("system:node:{NODE}");
    let file = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let kubeconfig = folder.join("kubeconfig");
    cluster.write_kubeconfig(&kubeconfig, &user, &["system:nodes"])?;
    let serving = cluster.serving_certificate(&user, &[&address])?;
    let provider = json!({
        "socket": containerd.socket(),
        "root": folder.join("virtual-kubelet"),
        "logRoot": folder.join("logs"),
        "clusterDNS": ["10.0.0.10"],
        "cgroupRoot": format!("/{}", machine.cgroup()),
        "maxPods": 500,
    });
    let mut command = containerd.beside(program);
    command.args([
        "run",
        "--provider",
        "cri",
        "--nodename",
        NODE,
        "--metrics-addr",
        "off",
        "--log-level",
        "warn",
    ]);
    // On all addresses of the machine, where a kubelet may have the usual one already.
    command.args(["--internal-ip", &address, "--port", "11999"]);
    command.arg("--provider-config").arg(file("provider.yaml", &provider.to_string())?);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--tls-cert-file").arg(file("serving.crt", &serving.cert_pem)?);
    command.arg("--tls-private-key-file").arg(file("serving.key", &serving.key_pem)?);
    command.arg("--client-verify-ca").arg(file("clients.crt", cluster.ca_pem())?);
    command.stdout(log.try_clone()?).stderr(log);
    Ok(containerd.start_beside(&mut command).await)
}

async fn burst(
    agent: &Agent,
    containerd: &Containerd,
    cluster: &ControlPlane,
    pods: Api<Pod>,
    count: usize,
) -> anyhow::Result<Vec<Figure>> {
    let runtime = || Usage::of(containerd.id().context("containerd runs")?).context("containerd ended");
    agent.ready(&Api::all(cluster.admin()?)).await?;
    tokio::time::sleep(SETTLE).await;
    let (idle, runtime_idle) = (agent.look()?, runtime()?);
    let mut burst = Burst::of(pods, count, sleeping());
    let up = burst.up().await?;
    let (ran, runtime_ran) = (agent.look()?, runtime()?);
    tokio::time::sleep(SETTLE).await;
    let (full, runtime_full) = (agent.look()?, runtime()?);
    let down = burst.down().await?;
    let (ended, runtime_ended) = (agent.look()?, runtime()?);
    let spent = |spans: [(&Usage, &Usage); 2]| -> f64 {
        spans.into_iter().map(|(from, to)| to.cpu.saturating_sub(from.cpu).as_secs_f64()).sum()
    };
    let mut figures = times(&up, down);
    figures.extend([
        (
            "processor time of the agent, pods to Running and gone",
            spent([(&idle.usage, &ran.usage), (&full.usage, &ended.usage)]),
            "s",
        ),
        (
            "processor time of containerd meanwhile, without its shims",
            spent([(&runtime_idle, &runtime_ran), (&runtime_full, &runtime_ended)]),
            "s",
        ),
        ("proportional set size, idle", idle.proportional, "MB"),
        ("proportional set size with the pods", full.proportional, "MB"),
        ("resident, idle", idle.usage.megabytes(), "MB"),
        ("resident with the pods", full.usage.megabytes(), "MB"),
    ]);
    Ok(figures)
}

fn times(up: &Up, down: Duration) -> Vec<Figure> {
    vec![
        ("all pods Running", up.all.as_secs_f64(), "s"),
        ("p50 from create to Running", up.within(50).as_secs_f64(), "s"),
        ("p99 from create to Running", up.within(99).as_secs_f64(), "s"),
        ("all deleted, 1 s grace", down.as_secs_f64(), "s"),
    ]
}

/// It does not hear that it shall end, being the first process of its container, so all of its grace is spent.
fn sleeping() -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sleep", "3600"]}],
    })
}
