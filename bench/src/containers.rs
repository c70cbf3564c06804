//! Many pods with real containers: our process with the provider `cri`, with the provider `local`, and the real kubelet, one after the other,
//! each with its own control plane, and its own containerd of the same build if it needs one.

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
    host::{
        BareHost, Containerd, Host, HostResources as Place, Image, Kubelet, NamespacedProcess, Namespaces,
        containerd, image, kubelet,
    },
};

use crate::{
    candidate::{Candidate, CandidateArgs, Candidates, NODE, is_ready},
    host_info::{HostInfo, proportional_megabytes, proportional_megabytes_below},
    pod_load::{PodLoad, StartTimes},
    report::{Figure, Report, print_progress, thousands},
};

/// Time before memory is measured, so that garbage collectors have run and buffers are released.
const SETTLE: Duration = Duration::from_secs(5);
/// The command of the pods.
const PROGRAM: [&str; 2] = ["sleep", "3600"];
/// Size of each file of the large image, and the number of files.
const MEGABYTE: u32 = 1 << 20;
const LARGE: u32 = 256;
/// How long until the node is Ready. A kubelet inspects the host first.
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
    field: CandidateArgs,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

/// The process that runs the pods.
enum Agent {
    Ours(NamespacedProcess),
    Kubelet(Kubelet),
}

/// Where it runs them.
enum RuntimeHost {
    Containerd(Containerd),
    Bare(BareHost),
}

/// Resource usage of an agent, and of everything that runs pods.
struct Usages {
    usage: Usage,
    proportional: f64,
    all: f64,
    runtime: Duration,
}

impl Containers {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // The other candidates do not run containers.
        self.field.keep(&[Candidate::Ours, Candidate::Local, Candidate::Kubelet]);
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::beside(HostInfo::detect()?, Candidate::Kubelet);
        for &candidate in &field.selected {
            report.versions.extend(field.version(candidate).map(|version| (candidate, version)));
        }
        for &count in &self.count {
            for round in 0..self.rounds {
                for &candidate in &field.selected {
                    print_progress(&format!(
                        "{} containers, {candidate}, round {}",
                        thousands(count),
                        round + 1
                    ));
                    let figures = Box::pin(self.one(candidate, &field, count, &mut report)).await;
                    report.outcome(candidate, count, figures)?;
                    report.save(&self.out, "containers")?;
                }
            }
        }
        report.publish(&self.out, "containers")
    }

    async fn one(
        &self,
        who: Candidate,
        field: &Candidates,
        count: usize,
        report: &mut Report,
    ) -> anyhow::Result<Vec<Figure>> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        report.host.record_version(&cluster).await?;
        let namespace = cluster.namespace("bench").await?;
        let pods: Api<Pod> = Api::namespaced(cluster.admin()?, namespace.name());
        let host = if who == Candidate::Local {
            RuntimeHost::Bare(BareHost::start(Place::any()).await)
        } else {
            let mut options = containerd::Options::default();
            options.program = self.containerd.clone().unwrap_or(options.program);
            let containerd = Containerd::start(Place::any(), options).await;
            report.runtime = Some(format!("containerd {}", containerd.version()));
            RuntimeHost::Containerd(containerd)
        };
        let unpacked = host.unpacks(field.ours())?;
        let agent = Agent::start(who, field, &host, &cluster, &format!("containers-{count}")).await?;
        let figures = run_load(&agent, &host, &cluster, pods, count).await;
        if let Agent::Kubelet(kubelet) = &agent {
            // Its directory is removed with the host.
            let said = kubelet.folder().join("kubelet.log");
            fs::copy(said, field.log(who, &format!("containers-{count}")))?;
        }
        let mut figures = figures?;
        figures.push(("an archive imported and unpacked, by containerd or by ours", unpacked, "MB/s"));
        Ok(figures)
    }
}

// === impl Agent ===

impl Agent {
    async fn start(
        who: Candidate,
        field: &Candidates,
        host: &RuntimeHost,
        cluster: &ControlPlane,
        what: &str,
    ) -> anyhow::Result<Self> {
        if let (Candidate::Kubelet, RuntimeHost::Containerd(containerd)) = (who, host) {
            let options = kubelet::Options { node: NODE.to_owned(), features: Vec::new() };
            return Ok(Self::Kubelet(Kubelet::start(containerd, cluster, &options).await));
        }
        let log = File::create(field.log(who, what))?;
        Ok(Self::Ours(ours(field.ours(), host, cluster, log).await?))
    }

    fn id(&self) -> u32 {
        match self {
            Self::Ours(resident) => resident.id(),
            Self::Kubelet(kubelet) => kubelet.id(),
        }
    }

    fn usages(&self, host: &RuntimeHost) -> anyhow::Result<Usages> {
        let usage = Usage::of(self.id()).context("it ended: see its log")?;
        // Orphaned processes are children of the first process of the namespaces.
        let mut roots = vec![host.init_pid(), self.id()];
        let mut runtime = Duration::ZERO;
        if let RuntimeHost::Containerd(containerd) = host {
            let id = containerd.id().context("containerd runs")?;
            roots.push(id);
            runtime = Usage::of(id).context("containerd ended")?.cpu;
        }
        // The memory of the pods themselves is not counted.
        let all = proportional_megabytes_below(&roots, &[&PROGRAM.join(" ")])?;
        Ok(Usages { usage, proportional: proportional_megabytes(self.id())?, all, runtime })
    }

    /// Waits until its node is Ready.
    async fn ready(&self, nodes: &Api<Node>, host: &RuntimeHost) -> anyhow::Result<()> {
        let begun = Instant::now();
        while nodes.get_opt(NODE).await?.is_none_or(|node| !is_ready(&node)) {
            self.usages(host)?;
            anyhow::ensure!(begun.elapsed() < READY, "the node is not Ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Starts our process in place of the kubelet, with the same settings.
async fn ours(
    program: &Path,
    host: &RuntimeHost,
    cluster: &ControlPlane,
    log: File,
) -> anyhow::Result<NamespacedProcess> {
    let machine = host.resources();
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
    let mut provider = json!({
        "root": folder.join("virtual-kubelet"),
        "logRoot": folder.join("logs"),
        "clusterDNS": ["10.0.0.10"],
        "cgroupRoot": format!("/{}", machine.cgroup()),
        "maxPods": 500,
    });
    let name = match host {
        RuntimeHost::Containerd(containerd) => {
            provider["socket"] = json!(containerd.socket());
            "cri"
        }
        RuntimeHost::Bare(bare) => {
            import(bare, program, &bare.archive(&Image::standard()))?;
            "local"
        }
    };
    let mut command = host.command(program);
    command.args([
        "run",
        "--provider",
        name,
        "--nodename",
        NODE,
        "--metrics-addr",
        "off",
        "--log-level",
        "warn",
    ]);
    // Another port, because a kubelet may use the default one.
    command.args(["--internal-ip", &address, "--port", "11999"]);
    command.arg("--state-dir").arg(state(host));
    command.arg("--provider-config").arg(file("provider.yaml", &provider.to_string())?);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--tls-cert-file").arg(file("serving.crt", &serving.cert_pem)?);
    command.arg("--tls-private-key-file").arg(file("serving.key", &serving.key_pem)?);
    command.arg("--client-verify-ca").arg(file("clients.crt", cluster.ca_pem())?);
    command.stdout(log.try_clone()?).stderr(log);
    Ok(NamespacedProcess::start(&mut command).await)
}

/// The state directory of our process.
fn state(host: &impl Host) -> PathBuf {
    host.resources().folder().join("state")
}

/// Imports images into our store.
fn import(host: &impl Host, program: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut command = host.command(program);
    let output = command.args(["image", "import", "--state-dir"]).args([&state(host), archive]).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

// === impl RuntimeHost ===

impl RuntimeHost {
    /// Megabytes of image files per second that are imported from an archive.
    fn unpacks(&self, program: &Path) -> anyhow::Result<f64> {
        let line = "an image is mostly files of programs and libraries, and those are larger than this one\n";
        let text = line.repeat(MEGABYTE as usize / line.len());
        let image = Image::new("vk.test/large:1");
        let image = (0..LARGE).fold(image, |image, number| image.file(&format!("/files/{number}"), &text));
        let archive = self.archive(&[image]);
        let begun = Instant::now();
        match self {
            Self::Containerd(containerd) => containerd.import(&archive),
            Self::Bare(bare) => import(bare, program, &archive)?,
        }
        let took = begun.elapsed().as_secs_f64();
        fs::remove_file(archive)?;
        Ok(f64::from(LARGE) * f64::from(MEGABYTE) / 1e6 / took)
    }
}

impl Host for RuntimeHost {
    fn resources(&self) -> &Place {
        match self {
            Self::Containerd(containerd) => containerd.resources(),
            Self::Bare(bare) => bare.resources(),
        }
    }

    fn namespaces(&self) -> &Namespaces {
        match self {
            Self::Containerd(containerd) => containerd.namespaces(),
            Self::Bare(bare) => bare.namespaces(),
        }
    }
}

async fn run_load(
    agent: &Agent,
    host: &RuntimeHost,
    cluster: &ControlPlane,
    pods: Api<Pod>,
    count: usize,
) -> anyhow::Result<Vec<Figure>> {
    agent.ready(&Api::all(cluster.admin()?), host).await?;
    tokio::time::sleep(SETTLE).await;
    let idle = agent.usages(host)?;
    let mut load = PodLoad::of(pods, count, sleeping());
    let up = load.start().await?;
    let ran = agent.usages(host)?;
    tokio::time::sleep(SETTLE).await;
    let full = agent.usages(host)?;
    let down = load.delete().await?;
    let ended = agent.usages(host)?;
    let spent = |what: fn(&Usages) -> Duration| -> f64 {
        let spans = [(&idle, &ran), (&full, &ended)];
        spans.into_iter().map(|(from, to)| what(to).saturating_sub(what(from)).as_secs_f64()).sum()
    };
    #[expect(clippy::cast_precision_loss, reason = "nobody starts so many containers")]
    let each = (full.all - idle.all) / count as f64;
    let mut figures = times(&up, down);
    figures.extend([
        ("processor time of the agent, pods to Running and gone", spent(|held| held.usage.cpu), "s"),
        ("processor time of containerd meanwhile, without its shims", spent(|held| held.runtime), "s"),
        ("proportional set size, idle", idle.proportional, "MB"),
        ("proportional set size with the pods", full.proportional, "MB"),
        ("proportional set size of all that runs pods, idle", idle.all, "MB"),
        ("proportional set size of all that runs pods, with them", full.all, "MB"),
        ("proportional set size of all that runs pods, for each", each, "MB"),
        ("resident, idle", idle.usage.megabytes(), "MB"),
        ("resident with the pods", full.usage.megabytes(), "MB"),
    ]);
    Ok(figures)
}

fn times(up: &StartTimes, down: Duration) -> Vec<Figure> {
    vec![
        ("all pods Running", up.all.as_secs_f64(), "s"),
        ("p50 from create to Running", up.within(50).as_secs_f64(), "s"),
        ("p99 from create to Running", up.within(99).as_secs_f64(), "s"),
        ("all deleted, 1 s grace", down.as_secs_f64(), "s"),
    ]
}

/// As the first process of its container it ignores SIGTERM, so the whole grace period passes.
fn sleeping() -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": PROGRAM}],
    })
}
