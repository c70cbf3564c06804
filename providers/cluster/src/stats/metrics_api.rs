//! The lower metrics API.

use std::{collections::HashMap, time::Duration};

use form_urlencoded::Serializer;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use vk_kube::{Client, Error};
use vk_provider::Quantity;

use super::{
    Readings,
    cpu_counter::{Cpu, Sample},
};

#[derive(Debug, Deserialize)]
struct List {
    #[serde(default)]
    items: Vec<PodMetrics>,
}

#[derive(Debug, Deserialize)]
struct PodMetrics {
    #[serde(default)]
    metadata: ObjectMeta,
    timestamp: Timestamp,
    /// Over what time the rates are averages, as Go writes it.
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

/// The figures of the pods that are selected, in one namespace or in all.
pub(super) async fn list(
    client: &Client,
    namespace: Option<&str>,
    selector: &str,
) -> Result<Readings, Error> {
    let place = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
    let query = Serializer::new(String::new()).append_pair("labelSelector", selector).finish();
    let address = format!("/apis/metrics.k8s.io/v1beta1/{place}pods?{query}");
    let list: List = client.read("pods.metrics.k8s.io", &address).await?;
    Ok(list.items.into_iter().map(PodMetrics::read).collect())
}

impl PodMetrics {
    fn read(self) -> ((String, String), HashMap<String, Sample>) {
        let window = window(&self.window);
        let containers = self.containers.into_iter().map(|container| {
            let amount = |name: &str, of: fn(Quantity) -> i64| {
                let amount = container.usage.get(name).copied()?;
                u64::try_from(of(amount)).ok()
            };
            let reading = Sample {
                at: self.timestamp,
                cpu: amount("cpu", Quantity::to_nano).map(|nano_cores| Cpu::Rate { nano_cores, window }),
                memory: amount("memory", Quantity::to_units),
            };
            (container.name.clone(), reading)
        });
        let meta = self.metadata;
        ((meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default()), containers.collect())
    }
}

/// A time that cannot be read is none: then the counter begins with the next figure.
fn window(text: &str) -> Duration {
    let read: Option<SignedDuration> = text.parse().ok();
    read.and_then(|read| Duration::try_from(read).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_are_read_as_metrics_server_writes_them() {
        let list: List = serde_json::from_value(json!({"kind": "PodMetricsList", "items": [{
            "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "timestamp": "2026-01-01T00:00:00Z", "window": "15.043s",
            "containers": [{"name": "main", "usage": {"cpu": "2512343n", "memory": "14Mi"}}],
        }]}))
        .unwrap();
        let (pod, readings) = list.items.into_iter().next().unwrap().read();
        assert_eq!(pod, ("shop".to_owned(), "web".to_owned()));
        let reading = readings["main"];
        let window = Duration::from_millis(15_043);
        assert_eq!(reading.cpu, Some(Cpu::Rate { nano_cores: 2_512_343, window }));
        assert_eq!(reading.memory, Some(14 << 20));
    }

    #[test]
    fn a_window_is_a_duration_of_go() {
        for (text, millis) in
            [("15.043s", 15_043), ("1m0.5s", 60_500), ("30s", 30_000), ("", 0), ("soon", 0), ("-3s", 0)]
        {
            assert_eq!(window(text), Duration::from_millis(millis), "{text:?}");
        }
    }
}
