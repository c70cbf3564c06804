//! A snapshot that is filled with generated events, in a process of its own: its memory, and the time of a query.

use std::{
    io::{Write as _, stdout},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;
use vk_fit::{Query, Snapshot};
use vk_testing::Usage;

use super::load::{Asked, QueryLoad, node, percentile, pod};
use crate::report::Figure;

/// Pods in a large query.
const MANY: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct SnapshotLoad {
    #[arg(long)]
    nodes: usize,
    #[arg(long)]
    pods: usize,
    #[arg(long)]
    queries: usize,
}

/// What the process reports, on its standard output.
#[derive(Debug, Serialize, Deserialize)]
struct SnapshotFigures {
    megabytes: f64,
    fill_seconds: f64,
    recompute_ms: f64,
    /// The 50th and the 99th percentile.
    query_ms: [f64; 2],
    many_ms: [f64; 2],
    event_ms: [f64; 2],
}

impl SnapshotLoad {
    pub(crate) fn measure(self) -> anyhow::Result<()> {
        let process = std::process::id();
        let before = Usage::of(process)?;
        let begun = Instant::now();
        let mut snapshot = Snapshot::default();
        for index in 0..self.nodes {
            snapshot.apply_node(&serde_json::from_value(node(index))?);
        }
        for index in 0..self.pods {
            snapshot.apply_pod(&lower_pod(index, index % self.nodes.max(1))?);
        }
        let filled = begun.elapsed();
        let megabytes = Usage::of(process)?.megabytes() - before.megabytes();
        let size = snapshot.size();
        anyhow::ensure!((size.nodes, size.pods) == (self.nodes, self.pods), "the snapshot has {size:?}");

        let load = QueryLoad::new(Asked::Snapshot)?;
        let queries = self.times(|index| {
            let pods = std::slice::from_ref(load.pod(index));
            let (verdicts, elapsed) = timed(|| snapshot.fit(&Query { pods, ..Query::default() }));
            load.check(index, &verdicts)?;
            Ok(elapsed)
        })?;
        let pods: Vec<Arc<Pod>> = load.different_pods(MANY);
        let many = self.times(|_| {
            let (verdicts, elapsed) = timed(|| snapshot.fit(&Query { pods: &pods, ..Query::default() }));
            anyhow::ensure!(verdicts.iter().all(vk_provider::ability::Verdict::fits), "{verdicts:?}");
            Ok(elapsed)
        })?;
        // Each moves to the next node.
        let events = self.times(|index| {
            let pod = lower_pod(index % self.pods.max(1), (index + 1) % self.nodes.max(1))?;
            Ok(timed(|| snapshot.apply_pod(&pod)).1)
        })?;
        let (differences, recompute) = timed(|| snapshot.repair());
        anyhow::ensure!(differences == 0, "the snapshot had {differences} differences");
        let figures = SnapshotFigures {
            megabytes,
            fill_seconds: filled.as_secs_f64(),
            recompute_ms: recompute.as_secs_f64() * 1000.0,
            query_ms: queries,
            many_ms: many,
            event_ms: events,
        };
        writeln!(stdout().lock(), "{}", json!(figures))?;
        Ok(())
    }

    /// The 50th and the 99th percentile of many runs.
    fn times(&self, mut run: impl FnMut(usize) -> anyhow::Result<Duration>) -> anyhow::Result<[f64; 2]> {
        let mut times = (0..self.queries).map(&mut run).collect::<anyhow::Result<Vec<_>>>()?;
        times.sort();
        Ok([50, 99].map(|percent| percentile(&times, percent)))
    }
}

/// The figures of the process from its output.
pub(super) fn figures(output: &[u8]) -> anyhow::Result<Vec<Figure>> {
    let figures: SnapshotFigures =
        serde_json::from_slice(output).context("read the figures of a snapshot")?;
    Ok(vec![
        ("query in process, p50", figures.query_ms[0], "ms"),
        ("query in process, p99", figures.query_ms[1], "ms"),
        ("query about 100 different pods, p99", figures.many_ms[1], "ms"),
        ("event of a pod, p99", figures.event_ms[1], "ms"),
        ("full recompute", figures.recompute_ms, "ms"),
        ("snapshot filled", figures.fill_seconds, "s"),
        ("memory of the snapshot", figures.megabytes, "MB"),
    ])
}

fn lower_pod(index: usize, node: usize) -> anyhow::Result<Pod> {
    let mut pod = pod(index, Some(node));
    pod["metadata"]["namespace"] = json!("team");
    pod["metadata"]["uid"] = json!(format!("{index:08x}-0000-4000-8000-{:012x}", index * 7919));
    Ok(serde_json::from_value(pod)?)
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let result = run();
    (result, begun.elapsed())
}
