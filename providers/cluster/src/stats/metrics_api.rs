//! Reads the metrics API of the lower cluster.

use std::{collections::HashMap, time::Duration};

use form_urlencoded::Serializer;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use vk_kube::{Client, Error};
use vk_provider::Quantity;

use super::{
    UsageSamples,
    cpu_counter::{Cpu, UsageSample},
};

#[derive(Debug, Deserialize)]
struct PodMetricsList {
    #[serde(default)]
    items: Vec<PodMetrics>,
}

#[derive(Debug, Deserialize)]
struct PodMetrics {
    #[serde(default)]
    metadata: ObjectMeta,
    timestamp: Timestamp,
    /// The window of the rates, as a Go duration.
    #[serde(default)]
    window: String,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default)]
    usage: HashMap<String, Quantity>,
}

/// The samples of the selected pods, in one namespace or in all.
pub(super) async fn list(
    client: &Client,
    namespace: Option<&str>,
    selector: &str,
) -> Result<UsageSamples, Error> {
    let place = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
    let query = Serializer::new(String::new()).append_pair("labelSelector", selector).finish();
    let address = format!("/apis/metrics.k8s.io/v1beta1/{place}pods?{query}");
    let list: PodMetricsList = client.read("pods.metrics.k8s.io", &address).await?;
    Ok(list.items.into_iter().map(PodMetrics::read).collect())
}

impl PodMetrics {
    fn read(self) -> ((String, String), HashMap<String, UsageSample>) {
        let window = window(&self.window);
        let containers = self.containers.into_iter().map(|container| {
            let amount = |name: &str, of: fn(Quantity) -> i64| {
                let amount = container.usage.get(name).copied()?;
                u64::try_from(of(amount)).ok()
            };
            let sample = UsageSample {
                at: self.timestamp,
                cpu: amount("cpu", Quantity::to_nano).map(|nano_cores| Cpu::Rate { nano_cores, window }),
                memory: amount("memory", Quantity::to_units),
            };
            (container.name.clone(), sample)
        });
        let meta = self.metadata;
        ((meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default()), containers.collect())
    }
}

/// An unreadable window counts as zero: the counter then starts with the next sample.
fn window(text: &str) -> Duration {
    let read: Option<SignedDuration> = text.parse().ok();
    read.and_then(|read| Duration::try_from(read).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_format_of_metrics_server_is_parsed() {
        let list: PodMetricsList = serde_json::from_value(json!({"kind": "PodMetricsList", "items": [{
            "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "timestamp": "2026-01-01T00:00:00Z", "window": "15.043s",
            "containers": [{"name": "main", "usage": {"cpu": "2512343n", "memory": "14Mi"}}],
        }]}))
        .unwrap();
        let (pod, samples) = list.items.into_iter().next().unwrap().read();
        assert_eq!(pod, ("shop".to_owned(), "web".to_owned()));
        let sample = samples["main"];
        let window = Duration::from_millis(15_043);
        assert_eq!(sample.cpu, Some(Cpu::Rate { nano_cores: 2_512_343, window }));
        assert_eq!(sample.memory, Some(14 << 20));
    }

    #[test]
    fn a_window_is_a_go_duration() {
        for (text, millis) in
            [("15.043s", 15_043), ("1m0.5s", 60_500), ("30s", 30_000), ("", 0), ("soon", 0), ("-3s", 0)]
        {
            assert_eq!(window(text), Duration::from_millis(millis), "{text:?}");
        }
    }
}
