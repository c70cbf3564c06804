//! A node that is a host: it adds capacity and resource pressure to a provider.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use vk_provider::{
    Changes, NodeChange, NodeTemplate, ObservedPod, PodBundle, PodRef, Provider, Result,
    ability::{Attach, Exec, Logs, PortForward, Stats},
};
use vk_supervisor::Clock;

use super::{Host, PressureTracker, Pressures, ReservedResources};

/// How often resource pressure is measured, as in a kubelet.
const PERIOD: Duration = Duration::from_secs(10);

/// A provider and the host that it runs pods on: the node has the capacity of the host and reports its resource pressure.
pub struct HostNode<P> {
    pods: P,
    host: Host,
    reserved: ReservedResources,
    max_pods: i64,
    state: Arc<Mutex<State>>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct State {
    tracker: PressureTracker,
    pressures: Pressures,
}

// === impl Node ===

impl<P: Provider> HostNode<P> {
    /// The node of a host, with reserved resources and a maximum number of pods.
    pub fn new(pods: P, host: Host, reserved: ReservedResources, max_pods: i64, clock: Clock) -> Self {
        let mut state = State::default();
        state.pressures = state.tracker.update(&host, clock.now());
        Self { pods, host, reserved, max_pods, state: Arc::new(Mutex::new(state)), clock }
    }

    /// Changes of resource pressure.
    fn pressure_changes(&self) -> BoxStream<'static, NodeChange> {
        let (state, host, clock) = (Arc::clone(&self.state), self.host.clone(), self.clock.clone());
        stream::unfold((state, host, clock), |(state, host, clock)| async move {
            loop {
                tokio::time::sleep(PERIOD).await;
                if state.lock().update(&host, &clock) {
                    return Some((NodeChange::Refresh, (state, host, clock)));
                }
            }
        })
        .boxed()
    }
}

// === impl State ===

impl State {
    /// Measures the pressure. Returns whether it changed.
    fn update(&mut self, host: &Host, clock: &Clock) -> bool {
        let pressures = self.tracker.update(host, clock.now());
        let changed = pressures != self.pressures;
        self.pressures = pressures;
        changed
    }
}

#[async_trait]
impl<P: Provider> Provider for HostNode<P> {
    async fn create_pod(&self, pod: PodBundle) -> Result<()> {
        self.pods.create_pod(pod).await
    }

    async fn update_pod(&self, pod: PodBundle) -> Result<()> {
        self.pods.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        self.pods.delete_pod(pod, last_known, grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.pods.pod_status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        self.pods.pods().await
    }

    fn changes(&self) -> Changes {
        self.pods.changes()
    }

    async fn ping(&self) -> Result<()> {
        self.pods.ping().await
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        self.pods.configure_node(node);
        self.host.describe(node, &self.reserved, self.max_pods);
        self.state.lock().pressures.describe(node);
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        let engine = self.pods.node_changes().unwrap_or_else(|| stream::pending().boxed());
        Some(stream::select(engine, self.pressure_changes()).boxed())
    }

    fn logs(&self) -> Option<&dyn Logs> {
        self.pods.logs()
    }

    fn exec(&self) -> Option<&dyn Exec> {
        self.pods.exec()
    }

    fn attach(&self) -> Option<&dyn Attach> {
        self.pods.attach()
    }

    fn port_forward(&self) -> Option<&dyn PortForward> {
        self.pods.port_forward()
    }

    fn stats(&self) -> Option<&dyn Stats> {
        self.pods.stats()
    }
}

#[cfg(test)]
mod tests {
    use vk_provider::{Quantity, node::ConditionStatus};

    use super::*;
    use crate::testing::host::{fake_host, write_file};

    struct Nothing;

    #[async_trait]
    impl Provider for Nothing {
        async fn create_pod(&self, _: PodBundle) -> Result<()> {
            Ok(())
        }
        async fn update_pod(&self, _: PodBundle) -> Result<()> {
            Ok(())
        }
        async fn delete_pod(&self, _: &PodRef, _: Option<Arc<Pod>>, _: Duration) -> Result<()> {
            Ok(())
        }
        async fn pod_status(&self, _: &PodRef) -> Result<PodStatus> {
            Ok(PodStatus::default())
        }
        async fn pods(&self) -> Result<Vec<ObservedPod>> {
            Ok(Vec::new())
        }
        fn configure_node(&self, node: &mut NodeTemplate) {
            node.system.container_runtime_version = "containerd://1".into();
        }
    }

    fn pressed(node: &HostNode<Nothing>) -> ConditionStatus {
        let mut template = NodeTemplate::default();
        node.configure_node(&mut template);
        assert_eq!(template.system.container_runtime_version, "containerd://1");
        assert_eq!(template.capacity["cpu"], Quantity::units(4));
        template.conditions.iter().find(|known| known.kind == "MemoryPressure").unwrap().status
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_is_refreshed_when_memory_pressure_begins_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        let host = fake_host(folder.path());
        let clock = Clock::following_tokio(jiff::Timestamp::UNIX_EPOCH);
        let node = HostNode::new(Nothing, host, ReservedResources::default(), 110, clock);
        let mut changes = node.node_changes().unwrap();
        assert_eq!(pressed(&node), ConditionStatus::False);
        let quiet = tokio::time::timeout(Duration::from_mins(1), changes.next()).await;
        assert!(quiet.is_err(), "no change, no refresh");
        write_file(folder.path(), "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n");
        assert_eq!(changes.next().await, Some(NodeChange::Refresh));
        assert_eq!(pressed(&node), ConditionStatus::True);
        write_file(folder.path(), "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        assert_eq!(changes.next().await, Some(NodeChange::Refresh));
        assert_eq!(pressed(&node), ConditionStatus::False);
    }
}
