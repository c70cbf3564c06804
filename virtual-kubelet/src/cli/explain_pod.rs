//! `virtual-kubelet explain-pod`.

mod manifest;
mod report;

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use clap::{Arg, Args, ValueEnum};
use serde_json::Value;
use vk_kube::{ClientOptions, Metrics};
use vk_provider::{ExplainRequest, error::Kind, explanation::BackendAnswer};
use vk_supervisor::Supervisor;

use self::{manifest::Workload, report::Explained};
use super::{Failure, Flags, load, output::print};
use crate::{
    Registry,
    config::{EffectiveConfig, Layer, Node, Problem},
    run::{address, context},
};

/// The namespace of objects without one, if no kubeconfig says another.
const DEFAULT_NAMESPACE: &str = "default";
/// The flag of kubectl. As a flag of `run` it is deprecated.
const NAMESPACE: &str = "namespace";

/// Says what would become of pods, without a cluster: whether they run, their size and price, and which fields are not honoured.
///
/// Reads pods and everything with a pod template, such as Deployments, Jobs and CronJobs. Exits with 1 if a pod would not run.
#[derive(Debug, Args)]
#[command(mut_arg(NAMESPACE, namespace_flag))]
pub(super) struct ExplainPod {
    /// File with one or several manifests (YAML or JSON); `-` is standard input; may be repeated
    #[arg(long = "filename", short = 'f', value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: Output,
    /// Show all fields that are set, also those that are honoured as they are
    #[arg(long)]
    all: bool,
    /// Ask the backend, with the credentials of the configuration: for a dry run and the price
    #[arg(long)]
    ask_cloud: bool,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn namespace_flag(argument: Arg) -> Arg {
    argument
        .hide(false)
        .short('n')
        .value_name("NAMESPACE")
        .help("Namespace of objects without one [default: the one of the kubeconfig's context, else default]")
}

// === impl ExplainPod ===

impl ExplainPod {
    pub(super) async fn execute(self, before: Flags, registry: &Registry) -> Result<(), Failure> {
        let mut flags = before.overlaid_with(self.flags);
        let given = flags.take(NAMESPACE).filter(|namespace| !namespace.is_empty());
        let config = load(&flags, Layer::default(), None, registry)?;
        let namespace = match given {
            Some(namespace) => namespace,
            None => default_namespace(&config).await,
        };
        let workloads = read(&self.files, &namespace)?;
        let explained = explain(&config, registry, &workloads, self.ask_cloud).await?;
        print(&match self.output {
            Output::Text => {
                let texts: Vec<String> = explained.iter().map(|one| one.text(self.all)).collect();
                texts.join("\n")
            }
            Output::Json => {
                let all: Value = explained.iter().map(Explained::json).collect();
                format!("{all:#}\n")
            }
        })?;
        verdict(&explained)
    }
}

/// The namespace of the kubeconfig's context, as for kubectl. Nothing is called.
async fn default_namespace(config: &EffectiveConfig) -> String {
    let options = ClientOptions { kubeconfig: config.kubeconfig.clone(), server: config.api_server.clone() };
    let supervisor = Supervisor::new();
    let client = options.connect(&supervisor, Metrics::default()).await;
    let namespace = client.map(|client| client.kube().default_namespace().to_owned()).ok();
    supervisor.shut_down(Duration::from_secs(1)).await;
    namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
}

/// Reads all files. All their problems are reported at once.
fn read(files: &[PathBuf], namespace: &str) -> Result<Vec<Workload>, Failure> {
    let (mut workloads, mut others, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for path in files {
        let (shown, text) = if path == Path::new("-") {
            let mut text = String::new();
            ("standard input".to_owned(), io::stdin().read_to_string(&mut text).map(|_| text))
        } else {
            (path.display().to_string(), std::fs::read_to_string(path))
        };
        match text {
            Err(error) => problems.push(Problem::new(&shown, format!("cannot read it: {error}"))),
            Ok(text) => match manifest::parse(&text, &shown, namespace) {
                Err(found) => problems.extend(found),
                Ok(manifest) => {
                    workloads.extend(manifest.workloads);
                    others.extend(manifest.others);
                }
            },
        }
    }
    if workloads.is_empty() && problems.is_empty() {
        let others = if others.is_empty() { "nothing".to_owned() } else { others.join(", ") };
        let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        let message = format!("no pods and nothing with a pod template, but {others}");
        problems.push(Problem::new(names.join(", "), message));
    }
    if problems.is_empty() { Ok(workloads) } else { Err(Failure::Configuration(problems)) }
}

/// Asks the provider of each node about each workload. Equal nodes are asked once.
async fn explain<'a>(
    config: &'a EffectiveConfig,
    registry: &Registry,
    workloads: &'a [Workload],
    ask_backend: bool,
) -> Result<Vec<Explained<'a>>, Failure> {
    let supervisor = Supervisor::new();
    let mut explained = Vec::new();
    let mut outcome = Ok(());
    for node in config.distinct_providers() {
        let asked = explain_on(node, config, registry, workloads, ask_backend, &supervisor).await;
        match asked {
            Ok(more) => explained.extend(more),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    supervisor.shut_down(Duration::from_secs(1)).await;
    outcome.map(|()| explained)
}

async fn explain_on<'a>(
    node: &'a Node,
    config: &EffectiveConfig,
    registry: &Registry,
    workloads: &'a [Workload],
    ask_backend: bool,
    supervisor: &Supervisor,
) -> Result<Vec<Explained<'a>>, Failure> {
    let Some(factory) = registry.get(&node.provider) else { return Ok(Vec::new()) };
    // Without an API server the address is a guess.
    let context = context(node, address::internal_ip(""), &config.state_dir, supervisor.child());
    let mut explained = Vec::new();
    for workload in workloads {
        let request = ExplainRequest { pod: Arc::new(workload.pod.clone()), ask_backend };
        let explanation = factory
            .explain(node.provider_config.clone(), context.clone(), request)
            .await
            .map_err(|error| provider_failure(&node.provider, &error))?;
        explained.push(Explained { workload, provider: &node.provider, explanation, asked: ask_backend });
    }
    Ok(explained)
}

/// A wrong configuration is the user's mistake; everything else is a failure.
pub(super) fn provider_failure(provider: &str, error: &vk_provider::Error) -> Failure {
    let message = format!("provider {provider}: {}", error.report());
    match error.kind() {
        Kind::Invalid | Kind::Unsupported => {
            Failure::Configuration(vec![Problem::new("providerConfig", message)])
        }
        _ => anyhow!(message).into(),
    }
}

fn verdict(explained: &[Explained<'_>]) -> Result<(), Failure> {
    let all = explained.len();
    let refused = explained.iter().filter(|one| !one.explanation.runs()).count();
    let failed = explained
        .iter()
        .filter(|one| matches!(one.explanation.backend, Some(BackendAnswer::Failed(_))))
        .count();
    if refused > 0 {
        let verb = if refused == 1 { "does" } else { "do" };
        return Err(anyhow!("{refused} of {all} workloads {verb} not run").into());
    }
    if failed > 0 {
        return Err(anyhow!("the backend gave no answer about {failed} of {all} workloads").into());
    }
    Ok(())
}
