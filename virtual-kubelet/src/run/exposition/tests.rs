use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use prometheus_client::metrics::{counter::Counter, histogram::Histogram};
use vk_provider::{Error, ObservedPod, PodBundle, PodRef, Result};

use super::*;

/// A provider that has only metrics.
struct Metered(Mutex<Vec<MetricFamily>>);

#[async_trait]
impl Provider for Metered {
    async fn create_pod(&self, _pod: PodBundle) -> Result<()> {
        Err(Error::unsupported("no pods"))
    }

    async fn update_pod(&self, _pod: PodBundle) -> Result<()> {
        Err(Error::unsupported("no pods"))
    }

    async fn delete_pod(&self, _pod: &PodRef, _known: Option<Arc<Pod>>, _grace: Duration) -> Result<()> {
        Err(Error::not_found("no pods"))
    }

    async fn pod_status(&self, _pod: &PodRef) -> Result<PodStatus> {
        Err(Error::not_found("no pods"))
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        Ok(Vec::new())
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        self.0.lock().clone()
    }
}

/// An exposition with a counter and a histogram of the process.
fn exposition() -> Exposition {
    let mut counters = Counters::with_prefix(PREFIX);
    let (pings, seconds) = (Counter::<u64>::default(), Histogram::new([1.0]));
    pings.inc();
    seconds.observe(0.5);
    counters.register("pings", "Pings", pings);
    counters.register("ping_seconds", "Their times", seconds);
    Exposition::new(counters)
}

fn with(exposition: &Exposition, node: &str, families: Vec<MetricFamily>) -> Arc<Metered> {
    let provider = Arc::new(Metered(Mutex::new(families)));
    exposition.add(node, Arc::<Metered>::clone(&provider));
    provider
}

/// The lines of the providers.
fn lines(exposition: &Exposition) -> Vec<String> {
    let text = exposition.encode().unwrap();
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    assert_eq!(text.matches("# EOF").count(), 1, "{text}");
    assert!(text.contains("virtual_kubelet_pings_total 1\n"), "{text}");
    let own = |line: &&str| !line.contains("virtual_kubelet_ping") && *line != "# EOF";
    text.lines().filter(own).map(str::to_owned).collect()
}

#[test]
fn metrics_of_all_nodes_are_read_at_scrape_time_and_carry_the_node() {
    let exposition = exposition();
    let calls = |value: f64| {
        MetricFamily::counter("cloud_calls_total", "Calls of the cloud.")
            .sample(&[("action", "create")], value)
            .sample(&[("action", "delete")], 1.0)
    };
    let first = with(&exposition, "a", vec![calls(2.0)]);
    let age = MetricFamily::gauge("cloud_look_age_seconds", "Age of the last look").sample(&[], 1.5);
    with(&exposition, "b", vec![calls(3.0), age]);
    let wanted = [
        "# HELP virtual_kubelet_cloud_calls Calls of the cloud.",
        "# TYPE virtual_kubelet_cloud_calls counter",
        r#"virtual_kubelet_cloud_calls_total{action="create",node="a"} 2"#,
        r#"virtual_kubelet_cloud_calls_total{action="create",node="b"} 3"#,
        r#"virtual_kubelet_cloud_calls_total{action="delete",node="a"} 1"#,
        r#"virtual_kubelet_cloud_calls_total{action="delete",node="b"} 1"#,
        "# HELP virtual_kubelet_cloud_look_age_seconds Age of the last look.",
        "# TYPE virtual_kubelet_cloud_look_age_seconds gauge",
        r#"virtual_kubelet_cloud_look_age_seconds{node="b"} 1.5"#,
    ];
    assert_eq!(lines(&exposition), wanted);
    *first.0.lock() = vec![calls(7.0)];
    assert!(lines(&exposition).contains(&wanted[2].replace(" 2", " 7")));
    exposition.remove("b");
    exposition.remove("a");
    assert_eq!(lines(&exposition), Vec::<String>::new());
}

#[test]
fn what_would_make_the_text_invalid_is_left_out() {
    let gauge = |name: &str| MetricFamily::gauge(name, "h").sample(&[], 1.0);
    let counter = |name: &str| MetricFamily::counter(name, "h").sample(&[], 1.0);
    let exposition = exposition();
    let families = vec![
        // Names.
        gauge(""),
        gauge("9lives"),
        gauge("a-b"),
        gauge("a b"),
        gauge("ä"),
        gauge("a\n# EOF"),
        // Those of the process.
        gauge("pings"),
        counter("pings_total"),
        counter("pings"),
        gauge("ping_seconds_count"),
        gauge("ping_seconds"),
        // Twice: the first kind stays.
        gauge("twice"),
        counter("twice"),
        gauge("twice_total"),
        MetricFamily::gauge("twice", "other").sample(&[("zone", "z")], 2.0),
        // Nothing to show.
        MetricFamily::gauge("empty", "h"),
    ];
    with(&exposition, "n", families);
    let wanted = [
        "# HELP virtual_kubelet_twice h.",
        "# TYPE virtual_kubelet_twice gauge",
        r#"virtual_kubelet_twice{node="n"} 1"#,
        r#"virtual_kubelet_twice{node="n",zone="z"} 2"#,
    ];
    assert_eq!(lines(&exposition), wanted);
}

#[test]
fn invalid_samples_are_left_out_and_texts_are_escaped() {
    let exposition = exposition();
    let counter = MetricFamily::counter("calls", "Calls\nby \"what\" \\ who")
        .sample(&[("who", "a\"b\\c\nd")], 1.0)
        .sample(&[("node", "impostor")], 2.0)
        .sample(&[], 3.0)
        .sample(&[("a", "1"), ("a", "2")], 4.0)
        .sample(&[("not valid", "1")], 5.0)
        .sample(&[("__name__", "other")], 6.0)
        .sample(&[("value", "negative")], -1.0)
        .sample(&[("value", "nan")], f64::NAN);
    let gauge = MetricFamily::gauge("level", "h")
        .sample(&[("value", "infinite")], f64::INFINITY)
        .sample(&[("value", "lowest")], f64::NEG_INFINITY)
        .sample(&[("value", "nan")], f64::NAN)
        .sample(&[("value", "negative")], -1.5);
    with(&exposition, "n", vec![counter, gauge]);
    let wanted = [
        r#"# HELP virtual_kubelet_calls Calls\nby \"what\" \\ who."#,
        "# TYPE virtual_kubelet_calls counter",
        r#"virtual_kubelet_calls_total{node="n"} 2"#,
        r#"virtual_kubelet_calls_total{node="n",who="a\"b\\c\nd"} 1"#,
        "# HELP virtual_kubelet_level h.",
        "# TYPE virtual_kubelet_level gauge",
        r#"virtual_kubelet_level{node="n",value="infinite"} +Inf"#,
        r#"virtual_kubelet_level{node="n",value="lowest"} -Inf"#,
        r#"virtual_kubelet_level{node="n",value="nan"} NaN"#,
        r#"virtual_kubelet_level{node="n",value="negative"} -1.5"#,
    ];
    assert_eq!(lines(&exposition), wanted);
}

#[test]
fn a_summary_has_a_sum_and_a_count_and_nothing_else_has() {
    let exposition = exposition();
    let seconds =
        MetricFamily::summary("call_seconds", "Durations").observations(&[("action", "create")], 1.5, 3);
    let wrong = MetricFamily::gauge("wrong", "W").observations(&[], 1.0, 1);
    let without = MetricFamily::summary("without", "W").sample(&[], 1.0);
    let _provider = with(&exposition, "a", vec![seconds, wrong, without]);
    assert_eq!(
        lines(&exposition),
        [
            "# HELP virtual_kubelet_call_seconds Durations.",
            "# TYPE virtual_kubelet_call_seconds summary",
            "virtual_kubelet_call_seconds_sum{action=\"create\",node=\"a\"} 1.5",
            "virtual_kubelet_call_seconds_count{action=\"create\",node=\"a\"} 3",
        ]
    );
}
