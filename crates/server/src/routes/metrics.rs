//! Metrics: the process' own, and those that are made of the provider's figures.

mod text;

use std::{collections::HashMap, sync::Arc};

use axum::{extract::Extension, response::Response};
use jiff::Timestamp;
use vk_provider::ability::{
    ContainerStats, CpuStats, InterfaceStats, MemoryStats, PodReference, PodStats, Summary,
};
use vk_supervisor::Clock;

use self::text::{Family, PROMETHEUS, Text};
use super::stats;
use crate::{Api, refusal::Refusal};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const NANO: f64 = 1e9;

/// `/metrics`: of this process.
pub(super) async fn own(Extension(api): Extension<Arc<Api>>) -> Response {
    super::text(OPENMETRICS, (api.exposition)())
}

/// `/metrics/resource`: what metrics-server reads. Without figures it says so in the text, as the kubelet does.
pub(super) async fn resource(Extension(api): Extension<Arc<Api>>) -> Result<Response, Refusal> {
    if api.provider.stats().is_none() {
        return Err(Refusal::not_implemented("usage figures"));
    }
    let mut text = Text::default();
    let figures = stats::figures(&api).await;
    if let Err(refusal) = &figures {
        tracing::warn!(error = %refusal.message, "the provider gives no usage figures");
    }
    write_resources(figures.ok(), &mut text);
    Ok(super::text(PROMETHEUS, text.finish()))
}

/// `/metrics/probes`: when this process started. Providers make their probes themselves and do not tell of them.
pub(super) async fn probes(Extension(api): Extension<Arc<Api>>) -> Response {
    let mut text = Text::default();
    if let Some(started) = process_start(&api.clock) {
        let help = "[ALPHA] Start time of the process since unix epoch in seconds.";
        text.family(Family::gauge("process_start_time_seconds", help)).sample(&[], seconds(started), None);
    }
    super::text(PROMETHEUS, text.finish())
}

/// `/metrics/cadvisor`: under cAdvisor's names, what the provider's figures say.
pub(super) async fn cadvisor(Extension(api): Extension<Arc<Api>>) -> Result<Response, Refusal> {
    let mut summary = stats::figures(&api).await?;
    one_of_each_name(&mut summary);
    let mut text = Text::default();
    write_cadvisor(&summary, &mut text);
    Ok(super::text(PROMETHEUS, text.finish()))
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "as above")]
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64 + f64::from(time.subsec_nanosecond()) / NANO
}

/// Something that has figures, and the labels that name it.
type Labelled<'a, T> = (Vec<(&'static str, &'a str)>, &'a T);

/// A figure's name, what it is, and how to get it.
type Named<T> = (&'static str, &'static str, fn(&T) -> Option<u64>);

/// A value, and when it was measured.
type Figure = Option<(f64, Option<Timestamp>)>;

/// A family with a sample for each part that has a figure.
fn each<T>(text: &mut Text, family: Family, parts: &[Labelled<'_, T>], figure: impl Fn(&T) -> Figure) {
    let mut family = text.family(family);
    for (labels, part) in parts {
        if let Some((value, time)) = figure(part) {
            family.sample(labels, value, time);
        }
    }
}

fn cpu(stats: Option<&CpuStats>) -> Figure {
    let stats = stats?;
    Some((number(stats.usage_core_nano_seconds?) / NANO, Some(stats.time)))
}

fn memory(stats: Option<&MemoryStats>, bytes: fn(&MemoryStats) -> Option<u64>) -> Figure {
    let stats = stats?;
    Some((number(bytes(stats)?), Some(stats.time)))
}

fn pods(summary: &Summary) -> Vec<Labelled<'_, PodStats>> {
    let mut all = Vec::new();
    for pod in &summary.pods {
        let PodReference { namespace, name, .. } = &pod.pod_ref;
        all.push((vec![("namespace", namespace.as_str()), ("pod", name.as_str())], pod));
    }
    all
}

fn containers(summary: &Summary) -> Vec<Labelled<'_, ContainerStats>> {
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

/// As the kubelet's registry writes it: families by name, each with how stable it is. Its `scrape_error` has been hidden since 1.30.
fn write_resources(summary: Option<Summary>, text: &mut Text) {
    let failed = if summary.is_some() { 0.0 } else { 1.0 };
    if let Some(mut summary) = summary {
        one_of_each_name(&mut summary);
        write_usage(&summary, text);
    }
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    text.family(Family::gauge("resource_scrape_error", help)).sample(&[], failed, None);
}

fn write_usage(summary: &Summary, text: &mut Text) {
    let (node, pods, containers) = ([(vec![], &summary.node)], pods(summary), containers(summary));
    let cpu_of = |what: &str| format!("[STABLE] Cumulative cpu time consumed by the {what} in core-seconds");
    let memory_of = |what: &str| format!("[STABLE] Current working set of the {what} in bytes");
    let family = Family::counter("container_cpu_usage_seconds_total", cpu_of("container"));
    each(text, family, &containers, |container| cpu(container.cpu.as_ref()));
    let family = Family::gauge("container_memory_working_set_bytes", memory_of("container"));
    each(text, family, &containers, |container| {
        memory(container.memory.as_ref(), |stats| stats.working_set_bytes)
    });
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    let family = Family::gauge("container_start_time_seconds", help);
    each(text, family, &containers, |container| {
        // A provider that does not know says 1970.
        let started = container.start_time;
        (started.as_second() > 0).then(|| (seconds(started), None))
    });
    let family = Family::counter("node_cpu_usage_seconds_total", cpu_of("node"));
    each(text, family, &node, |node| cpu(node.cpu.as_ref()));
    let family = Family::gauge("node_memory_working_set_bytes", memory_of("node"));
    each(text, family, &node, |node| memory(node.memory.as_ref(), |stats| stats.working_set_bytes));
    let family = Family::counter("pod_cpu_usage_seconds_total", cpu_of("pod"));
    each(text, family, &pods, |pod| cpu(pod.cpu.as_ref()));
    let family = Family::gauge("pod_memory_working_set_bytes", memory_of("pod"));
    each(text, family, &pods, |pod| memory(pod.memory.as_ref(), |stats| stats.working_set_bytes));
}

/// Of pods of one name, as when one was deleted by force and its successor came before it had stopped, the youngest: labels do not
/// tell them apart, and a reader refuses two samples of the same labels.
fn one_of_each_name(summary: &mut Summary) {
    let mut youngest: HashMap<(String, String), Timestamp> = HashMap::new();
    let named = |pod: &PodStats| (pod.pod_ref.namespace.clone(), pod.pod_ref.name.clone());
    for pod in &summary.pods {
        let start = youngest.entry(named(pod)).or_insert(pod.start_time);
        *start = pod.start_time.max(*start);
    }
    summary.pods.retain(|pod| {
        let name = named(pod);
        // It is taken out, so that of two that began at once only the first stays.
        let stays = youngest.get(&name) == Some(&pod.start_time);
        stays && youngest.remove(&name).is_some()
    });
}

fn write_cadvisor(summary: &Summary, text: &mut Text) {
    let (pods, containers) = (pods(summary), containers(summary));
    let family =
        Family::counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.");
    each(text, family, &containers, |container| cpu(container.cpu.as_ref()));
    let help = "Start time of the container since unix epoch in seconds.";
    let family = Family::gauge("container_start_time_seconds", help);
    each(text, family, &containers, |container| Some((seconds(container.start_time), None)));
    let of_memory: [Named<MemoryStats>; 3] = [
        ("container_memory_working_set_bytes", "Current working set in bytes.", |stats| {
            stats.working_set_bytes
        }),
        ("container_memory_usage_bytes", "Current memory usage in bytes, including all memory.", |stats| {
            stats.usage_bytes
        }),
        ("container_memory_rss", "Size of RSS in bytes.", |stats| stats.rss_bytes),
    ];
    for (name, help, bytes) in of_memory {
        let family = Family::gauge(name, help);
        each(text, family, &containers, |container| memory(container.memory.as_ref(), bytes));
    }
    let family =
        Family::gauge("container_fs_usage_bytes", "Number of bytes that are consumed by the container.");
    each(text, family, &containers, |container| {
        let fs = container.rootfs.as_ref()?;
        Some((number(fs.used_bytes?), Some(fs.time)))
    });
    let of_network: [Named<InterfaceStats>; 4] = [
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
    for (name, help, figure) in of_network {
        let mut family = text.family(Family::counter(name, help));
        for (labels, pod) in &pods {
            let Some(network) = &pod.network else { continue };
            let alone = std::slice::from_ref(&network.default);
            let interfaces = if network.interfaces.is_empty() { alone } else { &network.interfaces };
            for interface in interfaces {
                let Some(value) = figure(interface) else { continue };
                let labels = [&[("interface", &*interface.name)], labels.as_slice()].concat();
                family.sample(&labels, number(value), Some(network.time));
            }
        }
    }
}

/// When this process started, as the system says.
fn process_start(clock: &Clock) -> Option<Timestamp> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name, which may hold anything, the twentieth field: in hundredths of a second since the system began.
    let ticks: i64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    let up = std::fs::read_to_string("/proc/uptime").ok()?;
    let up: f64 = up.split(' ').next()?.parse().ok()?;
    let since = std::time::Duration::try_from_secs_f64(up).ok()?;
    let running = since.checked_sub(std::time::Duration::from_millis(u64::try_from(ticks).ok()? * 10))?;
    clock.now().checked_sub(running).ok()
}

#[cfg(test)]
mod tests;
