//! `/stats/summary`.

use std::sync::Arc;

use axum::{extract::Extension, response::Response};
use http::Uri;
use vk_provider::ability::{CpuStats, MemoryStats, PodStats, Summary};

use super::{JSON, QueryParams, text};
use crate::{Api, http_error::HttpError};

pub(super) async fn summary(Extension(api): Extension<Arc<Api>>, uri: Uri) -> Result<Response, HttpError> {
    let mut summary = usage_summary(&api).await?;
    if QueryParams::from_uri(&uri).is_on("only_cpu_and_memory") {
        only_cpu_and_memory(&mut summary);
    }
    let json = serde_json::to_string(&summary).map_err(|error| {
        HttpError::from(vk_provider::Error::internal("serialize the summary").caused_by(error))
    })?;
    Ok(text(JSON, json))
}

/// The provider's statistics. Missing totals of a pod or the node are summed from their parts: metrics-server ignores a node
/// without them.
pub(super) async fn usage_summary(api: &Api) -> Result<Summary, HttpError> {
    let stats = api.provider.stats().ok_or_else(|| HttpError::not_implemented("resource usage"))?;
    let mut summary = stats.summary().await?;
    for pod in &mut summary.pods {
        let PodStats { containers, cpu, memory, .. } = pod;
        *cpu = cpu.take().or_else(|| sum_of_cpu(containers.iter().map(|container| container.cpu.as_ref())));
        *memory = memory
            .take()
            .or_else(|| sum_of_memory(containers.iter().map(|container| container.memory.as_ref())));
    }
    let Summary { node, pods } = &mut summary;
    node.cpu = node.cpu.take().or_else(|| sum_of_cpu(pods.iter().map(|pod| pod.cpu.as_ref())));
    node.memory = node.memory.take().or_else(|| sum_of_memory(pods.iter().map(|pod| pod.memory.as_ref())));
    Ok(summary)
}

fn only_cpu_and_memory(summary: &mut Summary) {
    summary.node.network = None;
    summary.node.fs = None;
    for pod in &mut summary.pods {
        pod.network = None;
        pod.ephemeral_storage = None;
        for container in &mut pod.containers {
            container.rootfs = None;
            container.logs = None;
        }
    }
}

/// The sum of the values that are known.
fn add_known(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (one, other) => one.or(other),
    }
}

fn sum_of_cpu<'a>(parts: impl Iterator<Item = Option<&'a CpuStats>>) -> Option<CpuStats> {
    parts.flatten().cloned().reduce(|a, b| CpuStats {
        time: a.time.max(b.time),
        usage_nano_cores: add_known(a.usage_nano_cores, b.usage_nano_cores),
        usage_core_nano_seconds: add_known(a.usage_core_nano_seconds, b.usage_core_nano_seconds),
    })
}

fn sum_of_memory<'a>(parts: impl Iterator<Item = Option<&'a MemoryStats>>) -> Option<MemoryStats> {
    parts.flatten().cloned().reduce(|a, b| MemoryStats {
        time: a.time.max(b.time),
        // Available memory cannot be summed.
        available_bytes: None,
        usage_bytes: add_known(a.usage_bytes, b.usage_bytes),
        working_set_bytes: add_known(a.working_set_bytes, b.working_set_bytes),
        rss_bytes: add_known(a.rss_bytes, b.rss_bytes),
        page_faults: add_known(a.page_faults, b.page_faults),
        major_page_faults: add_known(a.major_page_faults, b.major_page_faults),
    })
}
