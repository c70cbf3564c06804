use vk_provider::ability::{CpuStats, MemoryStats, NodeStats};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn summary() -> Summary {
    let time = at("2026-01-01T00:00:01.5Z");
    let start_time = at("2026-01-01T00:00:00.25Z");
    let cpu =
        |nanos| Some(CpuStats { time, usage_nano_cores: Some(1), usage_core_nano_seconds: Some(nanos) });
    let memory = |bytes| {
        Some(MemoryStats {
            time,
            available_bytes: None,
            usage_bytes: None,
            working_set_bytes: Some(bytes),
            rss_bytes: None,
            page_faults: None,
            major_page_faults: None,
        })
    };
    let container = |name: &str, nanos| ContainerStats {
        name: name.to_owned(),
        start_time,
        cpu: cpu(nanos),
        memory: memory(4096),
        rootfs: None,
        logs: None,
    };
    let pod_ref =
        PodReference { name: "web".to_owned(), namespace: "shop".to_owned(), uid: "1-2".to_owned() };
    Summary {
        node: NodeStats {
            node_name: "vk".to_owned(),
            start_time,
            cpu: cpu(2_500_000_000),
            memory: memory(1 << 20),
            network: None,
            fs: None,
        },
        pods: vec![PodStats {
            pod_ref,
            start_time,
            containers: vec![container("a", 1_000_000_000), container("b", 500_000_000)],
            cpu: cpu(1_500_000_000),
            memory: memory(8192),
            network: None,
            ephemeral_storage: None,
        }],
    }
}

fn resources(summary: Option<Summary>) -> String {
    let mut text = PrometheusText::default();
    write_resources(summary, &mut text);
    text.finish()
}

/// The output of kubelet 1.36.4 for these statistics, except for the notation of large numbers and the last bits of the start
/// time.
#[test]
fn resource_metrics_match_the_kubelets() {
    let expected = "\
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container=\"a\",namespace=\"shop\",pod=\"web\"} 1 1767225601500
container_cpu_usage_seconds_total{container=\"b\",namespace=\"shop\",pod=\"web\"} 0.5 1767225601500
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container=\"a\",namespace=\"shop\",pod=\"web\"} 4096 1767225601500
container_memory_working_set_bytes{container=\"b\",namespace=\"shop\",pod=\"web\"} 4096 1767225601500
# HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container=\"a\",namespace=\"shop\",pod=\"web\"} 1767225600.25
container_start_time_seconds{container=\"b\",namespace=\"shop\",pod=\"web\"} 1767225600.25
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 2.5 1767225601500
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1048576 1767225601500
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace=\"shop\",pod=\"web\"} 1.5 1767225601500
# HELP pod_memory_working_set_bytes [STABLE] Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace=\"shop\",pod=\"web\"} 8192 1767225601500
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
";
    assert_eq!(resources(Some(summary())), expected);
}

#[test]
fn missing_values_are_left_out_and_a_failed_scrape_is_reported() {
    let mut partly = summary();
    partly.node.memory = None;
    let pod = &mut partly.pods[0];
    (pod.cpu, pod.memory) = (None, None);
    pod.containers.truncate(1);
    pod.containers[0].start_time = Timestamp::UNIX_EPOCH;
    pod.containers[0].memory.as_mut().unwrap().working_set_bytes = None;
    let text = resources(Some(partly));
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        samples,
        [
            "container_cpu_usage_seconds_total{container=\"a\",namespace=\"shop\",pod=\"web\"} 1 1767225601500",
            "node_cpu_usage_seconds_total 2.5 1767225601500",
            "resource_scrape_error 0",
        ]
    );
    let text = resources(None);
    assert_eq!(text.lines().next_back(), Some("resource_scrape_error 1"), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn the_youngest_of_several_pods_with_one_name_is_reported() {
    let mut several = summary();
    let old = several.pods[0].clone();
    let mut new = old.clone();
    new.pod_ref.uid = "2-3".to_owned();
    new.start_time = at("2026-01-01T00:00:01Z");
    let mut same_start = new.clone();
    same_start.pod_ref.uid = "3-4".to_owned();
    let mut other = old.clone();
    other.pod_ref.namespace = "bank".to_owned();
    several.pods = vec![old, new, same_start, other];
    deduplicate_pods(&mut several);
    let left: Vec<&str> = several.pods.iter().map(|pod| pod.pod_ref.uid.as_str()).collect();
    assert_eq!(left, ["2-3", "1-2"]);
}

#[test]
fn a_family_without_samples_is_omitted_and_labels_are_escaped() {
    let mut text = PrometheusText::default();
    text.family(MetricFamily::gauge("nothing", "empty"));
    text.family(MetricFamily::gauge("some", "one")).sample(&[("name", "a\"b\\c\nd")], 1.0, None);
    assert_eq!(text.finish(), "# HELP some one\n# TYPE some gauge\nsome{name=\"a\\\"b\\\\c\\nd\"} 1\n");
}
