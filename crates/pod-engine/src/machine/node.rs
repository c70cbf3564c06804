//! The node: what an engine does, on a machine.

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

use super::{Machine, Pressure, Reserved, Strain};

/// How often the machine is looked at for shortages, as often as a kubelet does.
const LOOK: Duration = Duration::from_secs(10);

/// A provider together with the machine that it runs pods on: the node is as big as the machine, and tells when it runs short of something.
pub struct Node<P> {
    pods: P,
    machine: Machine,
    reserved: Reserved,
    max_pods: i64,
    state: Arc<Mutex<State>>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct State {
    pressure: Pressure,
    strain: Strain,
}

// === impl Node ===

impl<P: Provider> Node<P> {
    /// The node of a machine. What is reserved is not for pods, and no more than `max_pods` are taken.
    pub fn new(pods: P, machine: Machine, reserved: Reserved, max_pods: i64, clock: Clock) -> Self {
        let mut state = State::default();
        state.strain = state.pressure.look(&machine, clock.now());
        Self { pods, machine, reserved, max_pods, state: Arc::new(Mutex::new(state)), clock }
    }

    /// Tells when the machine gets short of something, or no more.
    fn strains(&self) -> BoxStream<'static, NodeChange> {
        let (state, machine, clock) = (Arc::clone(&self.state), self.machine.clone(), self.clock.clone());
        stream::unfold((state, machine, clock), |(state, machine, clock)| async move {
            loop {
                tokio::time::sleep(LOOK).await;
                if state.lock().look(&machine, &clock) {
                    return Some((NodeChange::Refresh, (state, machine, clock)));
                }
            }
        })
        .boxed()
    }
}

// === impl State ===

impl State {
    /// Whether there is something else to tell than before.
    fn look(&mut self, machine: &Machine, clock: &Clock) -> bool {
        let strain = self.pressure.look(machine, clock.now());
        let changed = strain != self.strain;
        self.strain = strain;
        changed
    }
}

#[async_trait]
impl<P: Provider> Provider for Node<P> {
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
        self.machine.describe(node, &self.reserved, self.max_pods);
        self.state.lock().strain.describe(node);
    }

    fn node_changes(&self) -> Option<BoxStream<'static, NodeChange>> {
        let engine = self.pods.node_changes().unwrap_or_else(|| stream::pending().boxed());
        Some(stream::select(engine, self.strains()).boxed())
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
    use crate::machine::pretend::{machine, put};

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

    fn pressed(node: &Node<Nothing>) -> ConditionStatus {
        let mut template = NodeTemplate::default();
        node.configure_node(&mut template);
        assert_eq!(template.system.container_runtime_version, "containerd://1");
        assert_eq!(template.capacity["cpu"], Quantity::units(4));
        template.conditions.iter().find(|known| known.kind == "MemoryPressure").unwrap().status
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_is_told_again_when_memory_gets_short_and_when_it_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine(folder.path());
        let clock = Clock::following_tokio(jiff::Timestamp::UNIX_EPOCH);
        let node = Node::new(Nothing, machine, Reserved::default(), 110, clock);
        let mut changes = node.node_changes().unwrap();
        assert_eq!(pressed(&node), ConditionStatus::False);
        let quiet = tokio::time::timeout(Duration::from_mins(1), changes.next()).await;
        assert!(quiet.is_err(), "nothing changed, and nothing is told");
        put(folder.path(), "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n");
        assert_eq!(changes.next().await, Some(NodeChange::Refresh));
        assert_eq!(pressed(&node), ConditionStatus::True);
        put(folder.path(), "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        assert_eq!(changes.next().await, Some(NodeChange::Refresh));
        assert_eq!(pressed(&node), ConditionStatus::False);
    }
}
