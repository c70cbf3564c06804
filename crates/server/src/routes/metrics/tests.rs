use vk_provider::ability::{CpuStats, MemoryStats, NodeStats};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn summary() -> Summary {
    let time = at("2026-01-01T00:00:01.5Z");
    let start_time = at("2026-01-01T00:00:00Z");
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

#[test]
fn resource_metrics_read_as_a_kubelets() {
    let mut text = Text::default();
    write_resources(&summary(), &mut text);
    let text = text.finish();
    for line in [
        "# HELP node_cpu_usage_seconds_total Cumulative cpu time consumed by the node in core-seconds",
        "# TYPE node_cpu_usage_seconds_total counter",
        "node_cpu_usage_seconds_total 2.5 1767225601500",
        "# TYPE node_memory_working_set_bytes gauge",
        "node_memory_working_set_bytes 1048576 1767225601500",
        "container_start_time_seconds{container=\"a\",namespace=\"shop\",pod=\"web\"} 1767225600",
        "container_cpu_usage_seconds_total{container=\"b\",namespace=\"shop\",pod=\"web\"} 0.5 1767225601500",
        "container_memory_working_set_bytes{container=\"a\",namespace=\"shop\",pod=\"web\"} 4096 1767225601500",
        "pod_cpu_usage_seconds_total{namespace=\"shop\",pod=\"web\"} 1.5 1767225601500",
        "pod_memory_working_set_bytes{namespace=\"shop\",pod=\"web\"} 8192 1767225601500",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\nis missing in\n{text}");
    }
}

#[test]
fn a_family_without_samples_is_not_mentioned_and_labels_are_escaped() {
    let mut text = Text::default();
    text.family(Family::gauge("nothing", "empty"));
    text.family(Family::gauge("some", "one")).sample(&[("name", "a\"b\\c\nd")], 1.0, None);
    assert_eq!(text.finish(), "# HELP some one\n# TYPE some gauge\nsome{name=\"a\\\"b\\\\c\\nd\"} 1\n");
}
