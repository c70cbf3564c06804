//! Metrics of the process, and resource metrics from the provider's statistics.

mod prometheus_text;

use std::{collections::HashMap, sync::Arc};

use axum::{extract::Extension, response::Response};
use jiff::Timestamp;
use vk_provider::ability::{
    ContainerStats, CpuStats, InterfaceStats, MemoryStats, PodReference, PodStats, Summary,
};
use vk_supervisor::Clock;

use self::prometheus_text::{MetricFamily, PROMETHEUS, PrometheusText};
use super::stats;
use crate::{Api, http_error::HttpError};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const NANO: f64 = 1e9;

/// `/metrics`: the metrics of this process.
pub(super) async fn process(Extension(api): Extension<Arc<Api>>) -> Response {
    super::text(OPENMETRICS, (api.encode_metrics)())
}

/// `/metrics/resource`, for metrics-server. If statistics are missing, `resource_scrape_error` says so, as in the kubelet.
pub(super) async fn resource(Extension(api): Extension<Arc<Api>>) -> Result<Response, HttpError> {
    if api.provider.stats().is_none() {
        return Err(HttpError::not_implemented("resource usage"));
    }
    let mut text = PrometheusText::default();
    let usage_summary = stats::usage_summary(&api).await;
    if let Err(error) = &usage_summary {
        tracing::warn!(error = %error.message, "the provider returned no statistics");
    }
    write_resources(usage_summary.ok(), &mut text);
    Ok(super::text(PROMETHEUS, text.finish()))
}

/// `/metrics/probes`: only the start time of this process. Providers run probes themselves and do not report them.
pub(super) async fn probes(Extension(api): Extension<Arc<Api>>) -> Response {
    let mut text = PrometheusText::default();
    if let Some(started) = process_start(&api.clock) {
        let help = "[ALPHA] Start time of the process since unix epoch in seconds.";
        text.family(MetricFamily::gauge("process_start_time_seconds", help)).sample(
            &[],
            seconds(started),
            None,
        );
    }
    super::text(PROMETHEUS, text.finish())
}

/// `/metrics/cadvisor`: the provider's statistics with cAdvisor's metric names.
pub(super) async fn cadvisor(Extension(api): Extension<Arc<Api>>) -> Result<Response, HttpError> {
    let mut summary = stats::usage_summary(&api).await?;
    deduplicate_pods(&mut summary);
    let mut text = PrometheusText::default();
    write_cadvisor(&summary, &mut text);
    Ok(super::text(PROMETHEUS, text.finish()))
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64 + f64::from(time.subsec_nanosecond()) / NANO
}

/// Something with statistics, and its labels.
type LabelledPart<'a, T> = (Vec<(&'static str, &'a str)>, &'a T);

/// A metric's name, its help text, and how to get its value.
type MetricSource<T> = (&'static str, &'static str, fn(&T) -> Option<u64>);

/// A value, and when it was measured.
type MetricSample = Option<(f64, Option<Timestamp>)>;

/// Writes a family with a sample for each part that has a value.
fn write_family<T>(
    text: &mut PrometheusText,
    family: MetricFamily,
    parts: &[LabelledPart<'_, T>],
    value_of: impl Fn(&T) -> MetricSample,
) {
    let mut family = text.family(family);
    for (labels, part) in parts {
        if let Some((value, time)) = value_of(part) {
            family.sample(labels, value, time);
        }
    }
}

fn cpu(stats: Option<&CpuStats>) -> MetricSample {
    let stats = stats?;
    Some((number(stats.usage_core_nano_seconds?) / NANO, Some(stats.time)))
}

fn memory(stats: Option<&MemoryStats>, bytes: fn(&MemoryStats) -> Option<u64>) -> MetricSample {
    let stats = stats?;
    Some((number(bytes(stats)?), Some(stats.time)))
}

fn pods(summary: &Summary) -> Vec<LabelledPart<'_, PodStats>> {
    let mut all = Vec::new();
    for pod in &summary.pods {
        let PodReference { namespace, name, .. } = &pod.pod_ref;
        all.push((vec![("namespace", namespace.as_str()), ("pod", name.as_str())], pod));
    }
    all
}

fn containers(summary: &Summary) -> Vec<LabelledPart<'_, ContainerStats>> {
    let mut all = Vec::new();
    for pod in &summary.pods {
        let PodReference { namespace, name, .. } = &pod.pod_ref;
        for container in &pod.containers {
            let labels = vec![
                ("container", container.name.as_str()),
                ("namespace", namespace.as_str()),
                ("pod", name.as_str()),
            ];
            all.push((labels, container));
        }
    }
    all
}

/// Writes families as the kubelet's registry does: by name, with their stability. Its `scrape_error` has been hidden since 1.30.
fn write_resources(summary: Option<Summary>, text: &mut PrometheusText) {
    let failed = if summary.is_some() { 0.0 } else { 1.0 };
    if let Some(mut summary) = summary {
        deduplicate_pods(&mut summary);
        write_usage(&summary, text);
    }
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    text.family(MetricFamily::gauge("resource_scrape_error", help)).sample(&[], failed, None);
}

fn write_usage(summary: &Summary, text: &mut PrometheusText) {
    let (node, pods, containers) = ([(vec![], &summary.node)], pods(summary), containers(summary));
    let cpu_of = |what: &str| format!("[STABLE] Cumulative cpu time consumed by the {what} in core-seconds");
    let memory_of = |what: &str| format!("[STABLE] Current working set of the {what} in bytes");
    let family = MetricFamily::counter("container_cpu_usage_seconds_total", cpu_of("container"));
    write_family(text, family, &containers, |container| cpu(container.cpu.as_ref()));
    let family = MetricFamily::gauge("container_memory_working_set_bytes", memory_of("container"));
    write_family(text, family, &containers, |container| {
        memory(container.memory.as_ref(), |stats| stats.working_set_bytes)
    });
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    let family = MetricFamily::gauge("container_start_time_seconds", help);
    write_family(text, family, &containers, |container| {
        // A provider that does not know the start time reports 1970.
        let started = container.start_time;
        (started.as_second() > 0).then(|| (seconds(started), None))
    });
    let family = MetricFamily::counter("node_cpu_usage_seconds_total", cpu_of("node"));
    write_family(text, family, &node, |node| cpu(node.cpu.as_ref()));
    let family = MetricFamily::gauge("node_memory_working_set_bytes", memory_of("node"));
    write_family(text, family, &node, |node| memory(node.memory.as_ref(), |stats| stats.working_set_bytes));
    let family = MetricFamily::counter("pod_cpu_usage_seconds_total", cpu_of("pod"));
    write_family(text, family, &pods, |pod| cpu(pod.cpu.as_ref()));
    let family = MetricFamily::gauge("pod_memory_working_set_bytes", memory_of("pod"));
    write_family(text, family, &pods, |pod| memory(pod.memory.as_ref(), |stats| stats.working_set_bytes));
}

/// Keeps only the youngest of several pods with one name, as after a forced deletion whose replacement started before the old pod
/// stopped. Labels do not distinguish them, and scrapers reject two samples with the same labels.
fn deduplicate_pods(summary: &mut Summary) {
    let mut youngest: HashMap<(String, String), Timestamp> = HashMap::new();
    let named = |pod: &PodStats| (pod.pod_ref.namespace.clone(), pod.pod_ref.name.clone());
    for pod in &summary.pods {
        let start = youngest.entry(named(pod)).or_insert(pod.start_time);
        *start = pod.start_time.max(*start);
    }
    summary.pods.retain(|pod| {
        let name = named(pod);
        // Removed, so that only the first of two pods with the same start time is kept.
        let stays = youngest.get(&name) == Some(&pod.start_time);
        stays && youngest.remove(&name).is_some()
    });
}

fn write_cadvisor(summary: &Summary, text: &mut PrometheusText) {
    let (pods, containers) = (pods(summary), containers(summary));
    let family = MetricFamily::counter(
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed in seconds.",
    );
    write_family(text, family, &containers, |container| cpu(container.cpu.as_ref()));
    let help = "Start time of the container since unix epoch in seconds.";
    let family = MetricFamily::gauge("container_start_time_seconds", help);
    write_family(text, family, &containers, |container| Some((seconds(container.start_time), None)));
    let of_memory: [MetricSource<MemoryStats>; 3] = [
        ("container_memory_working_set_bytes", "Current working set in bytes.", |stats| {
            stats.working_set_bytes
        }),
        ("container_memory_usage_bytes", "Current memory usage in bytes, including all memory.", |stats| {
            stats.usage_bytes
        }),
        ("container_memory_rss", "Size of RSS in bytes.", |stats| stats.rss_bytes),
    ];
    for (name, help, bytes) in of_memory {
        let family = MetricFamily::gauge(name, help);
        write_family(text, family, &containers, |container| memory(container.memory.as_ref(), bytes));
    }
    let family = MetricFamily::gauge(
        "container_fs_usage_bytes",
        "Number of bytes that are consumed by the container.",
    );
    write_family(text, family, &containers, |container| {
        let fs = container.rootfs.as_ref()?;
        Some((number(fs.used_bytes?), Some(fs.time)))
    });
    let of_network: [MetricSource<InterfaceStats>; 4] = [
        ("container_network_receive_bytes_total", "Cumulative count of bytes received", |stats| {
            stats.rx_bytes
        }),
        ("container_network_receive_errors_total", "Cumulative count of errors while receiving", |stats| {
            stats.rx_errors
        }),
        ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", |stats| {
            stats.tx_bytes
        }),
        (
            "container_network_transmit_errors_total",
            "Cumulative count of errors while transmitting",
            |stats| stats.tx_errors,
        ),
    ];
    for (name, help, value_of) in of_network {
        let mut family = text.family(MetricFamily::counter(name, help));
        for (labels, pod) in &pods {
            let Some(network) = &pod.network else { continue };
            let alone = std::slice::from_ref(&network.default);
            let interfaces = if network.interfaces.is_empty() { alone } else { &network.interfaces };
            for interface in interfaces {
                let Some(value) = value_of(interface) else { continue };
                let labels = [&[("interface", &*interface.name)], labels.as_slice()].concat();
                family.sample(&labels, number(value), Some(network.time));
            }
        }
    }
}

/// The start time of this process.
fn process_start(clock: &Clock) -> Option<Timestamp> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name, which may contain anything, the 20th field: hundredths of a second since boot.
    let ticks: i64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    let up = std::fs::read_to_string("/proc/uptime").ok()?;
    let up: f64 = up.split(' ').next()?.parse().ok()?;
    let since = std::time::Duration::try_from_secs_f64(up).ok()?;
    let running = since.checked_sub(std::time::Duration::from_millis(u64::try_from(ticks).ok()? * 10))?;
    clock.now().checked_sub(running).ok()
}

#[cfg(test)]
mod tests;
