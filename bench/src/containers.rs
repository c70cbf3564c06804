//! A burst of pods that really run: ours with the provider `cri`, ours with the provider `local`, and the real kubelet, one after the other,
//! each with a control plane of its own; and on a containerd of its own of the same build, where it needs one.

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
    burst::{Burst, Up},
    contestant::{Contestant, Field, NODE, Prepared, is_ready},
    machine::{Machine, proportional_megabytes, proportional_megabytes_below},
    report::{Figure, Report, say, thousands},
};

/// Memory is read this long after what it is read for: collectors have run, buffers have gone.
const SETTLE: Duration = Duration::from_secs(5);
/// What runs in the pods.
const PROGRAM: [&str; 2] = ["sleep", "3600"];
/// Bytes of each file of a large image, and how many files it has.
const MEGABYTE: u32 = 1 << 20;
const LARGE: u32 = 256;
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
    Ours(NamespacedProcess),
    Kubelet(Kubelet),
}

/// What it runs them on.
enum Ground {
    Containerd(Containerd),
    Bare(BareHost),
}

/// What an agent holds, and what all that is there to run pods does.
struct Held {
    usage: Usage,
    proportional: f64,
    all: f64,
    runtime: Duration,
}

impl Containers {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // Nobody else runs containers.
        self.field.keep(&[Contestant::Ours, Contestant::Local, Contestant::Kubelet]);
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
        let ground = if who == Contestant::Local {
            Ground::Bare(BareHost::start(Place::any()).await)
        } else {
            let mut options = containerd::Options::default();
            options.program = self.containerd.clone().unwrap_or(options.program);
            let containerd = Containerd::start(Place::any(), options).await;
            report.runtime = Some(format!("containerd {}", containerd.version()));
            Ground::Containerd(containerd)
        };
        let unpacked = ground.unpacks(field.ours())?;
        let agent = Agent::start(who, field, &ground, &cluster, &format!("containers-{count}")).await?;
        let figures = burst(&agent, &ground, &cluster, pods, count).await;
        if let Agent::Kubelet(kubelet) = &agent {
            // Its folder goes with the machine.
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
        who: Contestant,
        field: &Prepared,
        ground: &Ground,
        cluster: &ControlPlane,
        what: &str,
    ) -> anyhow::Result<Self> {
        if let (Contestant::Kubelet, Ground::Containerd(containerd)) = (who, ground) {
            let options = kubelet::Options { node: NODE.to_owned(), features: Vec::new() };
            return Ok(Self::Kubelet(Kubelet::start(containerd, cluster, &options).await));
        }
        let log = File::create(field.log(who, what))?;
        Ok(Self::Ours(ours(field.ours(), ground, cluster, log).await?))
    }

    fn id(&self) -> u32 {
        match self {
            Self::Ours(resident) => resident.id(),
            Self::Kubelet(kubelet) => kubelet.id(),
        }
    }

    fn look(&self, ground: &Ground) -> anyhow::Result<Held> {
        let usage = Usage::of(self.id()).context("it ended: see its log")?;
        // What lost its parent is below the first process of the namespaces.
        let mut roots = vec![ground.init_pid(), self.id()];
        let mut runtime = Duration::ZERO;
        if let Ground::Containerd(containerd) = ground {
            let id = containerd.id().context("containerd runs")?;
            roots.push(id);
            runtime = Usage::of(id).context("containerd ended")?.cpu;
        }
        // What the pods themselves hold is their own affair.
        let all = proportional_megabytes_below(&roots, &[&PROGRAM.join(" ")])?;
        Ok(Held { usage, proportional: proportional_megabytes(self.id())?, all, runtime })
    }

    /// Waits until its node is Ready.
    async fn ready(&self, nodes: &Api<Node>, ground: &Ground) -> anyhow::Result<()> {
        let begun = Instant::now();
        while nodes.get_opt(NODE).await?.is_none_or(|node| !is_ready(&node)) {
            self.look(ground)?;
            anyhow::ensure!(begun.elapsed() < READY, "the node is not Ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Starts ours where the kubelet would be, and with the same settings.
async fn ours(
    program: &Path,
    ground: &Ground,
    cluster: &ControlPlane,
    log: File,
) -> anyhow::Result<NamespacedProcess> {
    let machine = ground.resources();
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
    let name = match ground {
        Ground::Containerd(containerd) => {
            provider["socket"] = json!(containerd.socket());
            "cri"
        }
        Ground::Bare(bare) => {
            import(bare, program, &bare.archive(&Image::standard()))?;
            "local"
        }
    };
    let mut command = ground.command(program);
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
    // On all addresses of the machine, where a kubelet may have the usual one already.
    command.args(["--internal-ip", &address, "--port", "11999"]);
    command.arg("--state-dir").arg(state(ground));
    command.arg("--provider-config").arg(file("provider.yaml", &provider.to_string())?);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--tls-cert-file").arg(file("serving.crt", &serving.cert_pem)?);
    command.arg("--tls-private-key-file").arg(file("serving.key", &serving.key_pem)?);
    command.arg("--client-verify-ca").arg(file("clients.crt", cluster.ca_pem())?);
    command.stdout(log.try_clone()?).stderr(log);
    Ok(NamespacedProcess::start(&mut command).await)
}

/// Where ours keeps what survives it.
fn state(host: &impl Host) -> PathBuf {
    host.resources().folder().join("state")
}

/// Gives images to ours.
fn import(host: &impl Host, program: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut command = host.command(program);
    let output = command.args(["image", "import", "--state-dir"]).args([&state(host), archive]).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

// === impl Ground ===

impl Ground {
    /// How many megabytes of an image's files it takes from an archive in a second.
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

impl Host for Ground {
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

async fn burst(
    agent: &Agent,
    ground: &Ground,
    cluster: &ControlPlane,
    pods: Api<Pod>,
    count: usize,
) -> anyhow::Result<Vec<Figure>> {
    agent.ready(&Api::all(cluster.admin()?), ground).await?;
    tokio::time::sleep(SETTLE).await;
    let idle = agent.look(ground)?;
    let mut burst = Burst::of(pods, count, sleeping());
    let up = burst.up().await?;
    let ran = agent.look(ground)?;
    tokio::time::sleep(SETTLE).await;
    let full = agent.look(ground)?;
    let down = burst.down().await?;
    let ended = agent.look(ground)?;
    let spent = |what: fn(&Held) -> Duration| -> f64 {
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
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": PROGRAM}],
    })
}
