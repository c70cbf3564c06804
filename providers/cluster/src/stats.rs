//! UsageStats of lower pods, as usage of the upper ones.
//!
//! The kubelets below have the better figures, with counters that need no guessing; reading them takes the right `get` on
//! `nodes/proxy`, which few give away. Without it the figures are those of the lower metrics API, and the counters are added
//! up from its rates. Without that API there are none, and that is no error.

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

use self::cpu_counter::{CpuCounters, Sample};
use crate::names::Owner;

/// Readers come every 15 seconds, and often several of them.
const FRESH: Duration = Duration::from_secs(10);
/// Figures of more nodes than these are read from the metrics API, in one call.
const MOST_NODES: usize = 50;
/// How many kubelets are asked at a time.
const AT_ONCE: usize = 8;
/// After kubelets were not ours to ask, they are asked again so much later.
const DENIED_FOR: Duration = Duration::from_mins(10);

/// What was read of each container, by the namespace and the name of the lower pod and the container's name.
type Readings = HashMap<(String, String), HashMap<String, Sample>>;

/// Knows the lower pods.
pub trait PodSource: Send + Sync {
    /// The lower pods of this virtual node, each with the upper one that it is of.
    fn pods(&self) -> Vec<(PodRef, Arc<Pod>)>;
}

/// The ability [`Stats`] of a virtual node.
pub struct UsageStats {
    client: Client,
    owner: Owner,
    pods: Arc<dyn PodSource>,
    clock: Clock,
    opened: Timestamp,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counters: CpuCounters,
    /// Until when kubelets are not asked.
    denied: Option<Instant>,
    /// Whether it was said that there are no figures.
    said: bool,
    last: Option<(Instant, Summary)>,
}

impl UsageStats {
    /// With a client of the lower cluster.
    pub fn new(client: Client, owner: Owner, pods: Arc<dyn PodSource>, clock: Clock) -> Self {
        let opened = clock.now();
        Self { client, owner, pods, clock, opened, state: Mutex::default() }
    }

    async fn read(&self, placed: &[(PodRef, Arc<Pod>)], state: &mut State) -> Result<Readings> {
        if placed.is_empty() {
            return Ok(Readings::new());
        }
        let nodes: BTreeSet<&str> = placed.iter().filter_map(|(_, pod)| node_of(pod)).collect();
        let denied = state.denied.is_some_and(|until| Instant::now() < until);
        if nodes.len() <= MOST_NODES && !denied {
            match self.ask_kubelets(&nodes).await {
                Ok(Some(readings)) => return Ok(readings),
                Ok(None) => {}
                Err(_) => state.denied = Some(Instant::now() + DENIED_FOR),
            }
        }
        match self.ask_metrics(placed).await {
            Ok(readings) => {
                state.said = false;
                Ok(readings)
            }
            // There is none, nobody stands behind it, or it is not ours to ask.
            Err(error) if matches!(error.kind, Lower::NotFound | Lower::Server | Lower::Forbidden) => {
                if !std::mem::replace(&mut state.said, true) {
                    tracing::warn!(%error, "the lower cluster gives no usage figures");
                }
                Ok(Readings::new())
            }
            Err(error) => Err(Error::unavailable("read usage from the lower cluster").caused_by(error)),
        }
    }

    /// `None` if no kubelet answers; an error if they must not be asked.
    async fn ask_kubelets(&self, nodes: &BTreeSet<&str>) -> Result<Option<Readings>, LowerError> {
        let now = self.clock.now();
        let addresses: Vec<String> =
            nodes.iter().map(|node| format!("/api/v1/nodes/{node}/proxy/metrics/resource")).collect();
        let asked = addresses.into_iter().map(|address| {
            let client = self.client.clone();
            async move { client.read_text("nodes/proxy", &address).await }
        });
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut all: Option<Readings> = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(text) => {
                    let all = all.get_or_insert_default();
                    for (pod, readings) in kubelet_metrics::parse(&text, now) {
                        all.entry(pod).or_default().extend(readings);
                    }
                }
                Err(error) if matches!(error.kind, Lower::Forbidden | Lower::Unauthorized) => {
                    return Err(error);
                }
                // One that is down has no figures, and the others do.
                Err(error) => tracing::debug!(%error, "a lower kubelet gives no usage figures"),
            }
        }
        Ok(all)
    }

    async fn ask_metrics(&self, placed: &[(PodRef, Arc<Pod>)]) -> Result<Readings, LowerError> {
        let selector = self.owner.selector();
        match metrics_api::list(&self.client, None, &selector).await {
            Err(error) if error.kind == Lower::Forbidden => {}
            answer => return answer,
        }
        let namespaces: BTreeSet<&str> =
            placed.iter().filter_map(|(_, pod)| pod.metadata.namespace.as_deref()).collect();
        let mut all = Readings::new();
        for namespace in namespaces {
            all.extend(metrics_api::list(&self.client, Some(namespace), &selector).await?);
        }
        Ok(all)
    }

    fn summarise(
        &self,
        placed: &[(PodRef, Arc<Pod>)],
        mut readings: Readings,
        counters: &mut CpuCounters,
    ) -> Summary {
        let mut pods = Vec::new();
        for (upper, lower) in placed {
            let meta = &lower.metadata;
            let key = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
            let Some(readings) = readings.remove(&key) else { continue };
            let known = names_of(lower);
            let mut containers = Vec::new();
            for (name, reading) in readings {
                // Of a pod, and not of its sandbox or of what somebody has put in below.
                if known.contains(name.as_str()) {
                    let usage = counters.read(&upper.uid, &name, &reading);
                    containers.push(container_stats(lower, name, &reading, usage));
                }
            }
            containers.sort_by(|a, b| a.name.cmp(&b.name));
            if !containers.is_empty() {
                pods.push(PodStats {
                    pod_ref: PodReference {
                        name: upper.name.to_string(),
                        namespace: upper.namespace.to_string(),
                        uid: upper.uid.to_string(),
                    },
                    start_time: started(lower).unwrap_or(self.opened),
                    containers,
                    // Added up by whoever shows them.
                    cpu: None,
                    memory: None,
                    network: None,
                    ephemeral_storage: None,
                });
            }
        }
        let total =
            counters.keep(&placed.iter().map(|(upper, _)| upper.uid.as_ref()).collect::<HashSet<_>>());
        Summary { node: self.node(&pods, total), pods }
    }

    /// What the node uses is what its pods use: the rest of the lower cluster is not ours.
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
            && at.elapsed() < FRESH
        {
            return Ok(summary.clone());
        }
        let placed = self.pods.pods();
        let readings = self.read(&placed, &mut state).await?;
        let summary = self.summarise(&placed, readings, &mut state.counters);
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
    reading: &Sample,
    usage: cpu_counter::CpuUsage,
) -> ContainerStats {
    let start_time = container_started(lower, &name).or_else(|| started(lower)).unwrap_or(reading.at);
    ContainerStats {
        start_time,
        cpu: reading.cpu.map(|_| CpuStats {
            time: reading.at,
            usage_nano_cores: usage.rate,
            usage_core_nano_seconds: Some(usage.total),
        }),
        memory: reading.memory.map(|bytes| memory(reading.at, bytes)),
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

/// The lower node, for a pod of which something may run.
fn node_of(pod: &Pod) -> Option<&str> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    pod.spec.as_ref()?.node_name.as_deref()
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
