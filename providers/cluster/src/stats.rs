//! Usage of the lower pods, reported for the upper pods.
//!
//! The lower kubelets have the best data, with exact counters, but sample them needs `get` on `nodes/proxy`, which is rarely granted.
//! Otherwise the lower metrics API is used, and counters are integrated from its rates. Without a metrics API there is no usage data,
//! which is not an error.

mod cpu_counter;
mod kubelet_metrics;
mod metrics_api;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::Mutex, time::Instant};
use vk_kube::{Client, Error as LowerError, Kind as Lower};
use vk_provider::{
    Error, PodRef, Result,
    ability::{ContainerStats, CpuStats, MemoryStats, NodeStats, PodReference, PodStats, Stats, Summary},
};
use vk_supervisor::Clock;

use self::cpu_counter::{CpuCounters, UsageSample};
use crate::{names::OwnerId, status::has_ended};

/// Clients poll every 15 seconds, often several of them.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// With more nodes than this, the metrics API is used: it needs a single call.
const MAX_NODES: usize = 50;
/// The number of kubelets that are queried concurrently.
const CONCURRENCY: usize = 8;
/// How long kubelets are not queried after access was denied.
const DENIED_BACKOFF: Duration = Duration::from_mins(10);

/// UsageSamples of containers, by namespace and name of the lower pod, then by container.
type UsageSamples = HashMap<(String, String), HashMap<String, UsageSample>>;

/// Lists the lower pods.
pub trait PodSource: Send + Sync {
    /// The lower pods of this virtual node with their upper pods.
    fn pods(&self) -> Vec<(PodRef, Arc<Pod>)>;
}

/// Implements [`Stats`] for a virtual node.
pub struct UsageStats {
    client: Client,
    owner: OwnerId,
    pods: Arc<dyn PodSource>,
    clock: Clock,
    opened: Timestamp,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counters: CpuCounters,
    /// Kubelets are not queried before this time.
    denied: Option<Instant>,
    /// Whether the lack of usage data was logged.
    warned: bool,
    last: Option<(Instant, Summary)>,
}

impl UsageStats {
    /// Uses a client of the lower cluster.
    pub fn new(client: Client, owner: OwnerId, pods: Arc<dyn PodSource>, clock: Clock) -> Self {
        let opened = clock.now();
        Self { client, owner, pods, clock, opened, state: Mutex::default() }
    }

    async fn read(&self, pods: &[(PodRef, Arc<Pod>)], state: &mut State) -> Result<UsageSamples> {
        if pods.is_empty() {
            return Ok(UsageSamples::new());
        }
        let nodes: BTreeSet<&str> = pods.iter().filter_map(|(_, pod)| node_of(pod)).collect();
        let denied = state.denied.is_some_and(|until| Instant::now() < until);
        if nodes.len() <= MAX_NODES && !denied {
            match self.query_kubelets(&nodes).await {
                Ok(Some(samples)) => return Ok(samples),
                Ok(None) => {}
                Err(_) => state.denied = Some(Instant::now() + DENIED_BACKOFF),
            }
        }
        match self.query_metrics_api(pods).await {
            Ok(samples) => {
                state.warned = false;
                Ok(samples)
            }
            // There is no metrics API, it has no backend, or access is denied.
            Err(error)
                if matches!(
                    error.kind,
                    Lower::NotFound | Lower::NotServed | Lower::Server | Lower::Forbidden
                ) =>
            {
                if !std::mem::replace(&mut state.warned, true) {
                    tracing::warn!(%error, "the lower cluster provides no usage data");
                }
                Ok(UsageSamples::new())
            }
            Err(error) => Err(Error::unavailable("read usage from the lower cluster").caused_by(error)),
        }
    }

    /// Returns `None` if no kubelet answers, and an error if access is denied.
    async fn query_kubelets(&self, nodes: &BTreeSet<&str>) -> Result<Option<UsageSamples>, LowerError> {
        let now = self.clock.now();
        let addresses: Vec<String> =
            nodes.iter().map(|node| format!("/api/v1/nodes/{node}/proxy/metrics/resource")).collect();
        let asked = addresses.into_iter().map(|address| {
            let client = self.client.clone();
            async move { client.read_text("nodes/proxy", &address).await }
        });
        let mut answers = stream::iter(asked).buffer_unordered(CONCURRENCY);
        let mut all: Option<UsageSamples> = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(text) => {
                    let all = all.get_or_insert_default();
                    for (pod, samples) in kubelet_metrics::parse(&text, now) {
                        all.entry(pod).or_default().extend(samples);
                    }
                }
                Err(error) if matches!(error.kind, Lower::Forbidden | Lower::Unauthorized) => {
                    return Err(error);
                }
                // The other nodes still have data.
                Err(error) => tracing::debug!(%error, "a lower kubelet provides no usage data"),
            }
        }
        Ok(all)
    }

    async fn query_metrics_api(&self, pods: &[(PodRef, Arc<Pod>)]) -> Result<UsageSamples, LowerError> {
        let selector = self.owner.selector();
        match metrics_api::list(&self.client, None, &selector).await {
            Err(error) if error.kind == Lower::Forbidden => {}
            answer => return answer,
        }
        let namespaces: BTreeSet<&str> =
            pods.iter().filter_map(|(_, pod)| pod.metadata.namespace.as_deref()).collect();
        let mut all = UsageSamples::new();
        for namespace in namespaces {
            all.extend(metrics_api::list(&self.client, Some(namespace), &selector).await?);
        }
        Ok(all)
    }

    fn summarise(
        &self,
        pods: &[(PodRef, Arc<Pod>)],
        mut samples: UsageSamples,
        counters: &mut CpuCounters,
    ) -> Summary {
        let mut stats = Vec::new();
        for (upper, lower) in pods {
            let meta = &lower.metadata;
            let key = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
            let Some(samples) = samples.remove(&key) else { continue };
            let known = names_of(lower);
            let mut containers = Vec::new();
            for (name, sample) in samples {
                // Skips the sandbox and containers that were injected in the lower cluster.
                if known.contains(name.as_str()) {
                    let usage = counters.add_sample(&upper.uid, &name, &sample);
                    containers.push(container_stats(lower, name, &sample, usage));
                }
            }
            containers.sort_by(|a, b| a.name.cmp(&b.name));
            if !containers.is_empty() {
                stats.push(PodStats {
                    pod_ref: PodReference {
                        name: upper.name.to_string(),
                        namespace: upper.namespace.to_string(),
                        uid: upper.uid.to_string(),
                    },
                    start_time: started(lower).unwrap_or(self.opened),
                    containers,
                    // The clients add them up.
                    cpu: None,
                    memory: None,
                    network: None,
                    ephemeral_storage: None,
                });
            }
        }
        let total =
            counters.retain(&pods.iter().map(|(upper, _)| upper.uid.as_ref()).collect::<HashSet<_>>());
        Summary { node: self.node(&stats, total), pods: stats }
    }

    /// The usage of the node is that of its pods: the rest of the lower cluster is not ours.
    fn node(&self, pods: &[PodStats], total: u64) -> NodeStats {
        let containers = || pods.iter().flat_map(|pod| &pod.containers);
        let cpus = || containers().filter_map(|container| container.cpu.as_ref());
        let memories = || containers().filter_map(|container| container.memory.as_ref());
        NodeStats {
            node_name: self.owner.node.clone(),
            start_time: self.opened,
            cpu: cpus().map(|cpu| cpu.time).max().map(|time| CpuStats {
                time,
                usage_nano_cores: Some(cpus().filter_map(|cpu| cpu.usage_nano_cores).sum()),
                usage_core_nano_seconds: Some(total),
            }),
            memory: memories()
                .map(|memory| memory.time)
                .max()
                .map(|time| memory(time, memories().filter_map(|memory| memory.working_set_bytes).sum())),
            network: None,
            fs: None,
        }
    }
}

#[async_trait]
impl Stats for UsageStats {
    async fn summary(&self) -> Result<Summary> {
        let mut state = self.state.lock().await;
        if let Some((at, summary)) = &state.last
            && at.elapsed() < CACHE_TTL
        {
            return Ok(summary.clone());
        }
        let pods = self.pods.pods();
        let samples = self.read(&pods, &mut state).await?;
        let summary = self.summarise(&pods, samples, &mut state.counters);
        state.last = Some((Instant::now(), summary.clone()));
        Ok(summary)
    }
}

impl fmt::Debug for UsageStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsageStats").field("owner", &self.owner).finish_non_exhaustive()
    }
}

fn container_stats(
    lower: &Pod,
    name: String,
    sample: &UsageSample,
    usage: cpu_counter::ContainerCpu,
) -> ContainerStats {
    let start_time = container_started(lower, &name).or_else(|| started(lower)).unwrap_or(sample.at);
    ContainerStats {
        start_time,
        cpu: sample.cpu.map(|_| CpuStats {
            time: sample.at,
            usage_nano_cores: usage.rate,
            usage_core_nano_seconds: Some(usage.total),
        }),
        memory: sample.memory.map(|bytes| memory(sample.at, bytes)),
        rootfs: None,
        logs: None,
        name,
    }
}

fn memory(time: Timestamp, working_set: u64) -> MemoryStats {
    MemoryStats {
        time,
        available_bytes: None,
        usage_bytes: None,
        working_set_bytes: Some(working_set),
        rss_bytes: None,
        page_faults: None,
        major_page_faults: None,
    }
}

/// The lower node of a pod that may be running.
fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().filter(|_| !has_ended(pod))?.node_name.as_deref()
}

fn names_of(pod: &Pod) -> HashSet<&str> {
    let Some(spec) = &pod.spec else { return HashSet::new() };
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|one| one.name.as_str());
    let inits = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(inits).map(|one| one.name.as_str()).chain(ephemeral).collect()
}

fn started(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    Some(status.or(pod.metadata.creation_timestamp.as_ref())?.0)
}

fn container_started(pod: &Pod, name: &str) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let own = lists.into_iter().flatten().flatten().find(|status| status.name == name)?;
    Some(own.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}
