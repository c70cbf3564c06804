//! Keeps what the extender knows current.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use tracing::info;
use vk_kube::{Client, Objects, Partial, Selector, Slim, WatchEvent};
use vk_supervisor::Supervisor;

use super::Extender;
use crate::{cluster_state::trim_node, policy::NAME, watched_pod::WatchedPod};

/// Pods that are bound and may not have been seen by their node.
const BOUND_PODS: &str = "spec.nodeName!=,status.phase=Pending";
/// Pods for which placement may have chosen a node.
const NOMINATED_PODS: &str = "spec.nodeName=,status.nominatedNodeName!=";
const EVENTS_PER_BATCH: usize = 256;

/// Watches until the supervisor stops.
pub(super) async fn run(extender: Extender, client: Client, namespace: String, supervisor: Supervisor) {
    let fields = |fields: String| Selector { fields: Some(fields), ..Selector::default() };
    let nodes = Objects::<Slim<Node>>::all(client.clone());
    let nodes = nodes.watch_trimmed(&Selector::default(), |node| trim_node(&mut node.0));
    let pods = Objects::<WatchedPod>::all(client.clone()).watch(&fields(BOUND_PODS.to_owned()));
    let nominated = Objects::<WatchedPod>::all(client.clone()).watch(&fields(NOMINATED_PODS.to_owned()));
    let maps = Objects::<ConfigMap>::namespaced(client, namespace);
    let maps = maps.watch(&fields(format!("metadata.name={NAME}")));
    let mut nodes = Box::pin(nodes.ready_chunks(EVENTS_PER_BATCH));
    let mut pods = Box::pin(pods.ready_chunks(EVENTS_PER_BATCH));
    let mut nominated = Box::pin(nominated.ready_chunks(EVENTS_PER_BATCH));
    let mut maps = Box::pin(maps);
    // The lists in progress.
    let (mut listed_nodes, mut listed_nominated) = (None, None);
    let (mut has_nodes, mut has_pods, mut has_nominated) = (false, false, false);
    loop {
        tokio::select! {
            Some(events) = nodes.next() => {
                for event in events {
                    has_nodes |= matches!(event, WatchEvent::Listed);
                    extender.apply_node_event(event, &mut listed_nodes);
                }
            }
            Some(events) = pods.next() => {
                for event in events {
                    has_pods |= matches!(event, WatchEvent::Listed);
                    extender.apply_pod_event(event);
                }
            }
            Some(events) = nominated.next() => {
                for event in events {
                    has_nominated |= matches!(event, WatchEvent::Listed);
                    extender.apply_nomination_event(event, &mut listed_nominated);
                }
            }
            Some(event) = maps.next() => extender.apply_map_event(event),
            () = supervisor.stopping() => return,
        }
        if has_nodes && has_pods && has_nominated && !extender.is_ready() {
            extender.0.is_ready.send_replace(true);
            info!("the nodes are known: the extender answers");
        }
    }
}

impl Extender {
    fn apply_node_event(&self, event: WatchEvent<Slim<Node>>, listed: &mut Option<HashSet<Arc<str>>>) {
        let mut state = self.0.state.lock();
        match event {
            WatchEvent::Restarted => *listed = Some(HashSet::new()),
            WatchEvent::Applied(Slim(node)) => {
                if let Some(listed) = listed {
                    listed.insert(node.metadata.name.as_deref().unwrap_or_default().into());
                }
                state.apply_node(node);
            }
            WatchEvent::Deleted(Slim(node)) => {
                let name = node.metadata.name.unwrap_or_default();
                if let Some(listed) = listed {
                    listed.remove(&*name);
                }
                state.remove_node(&name);
            }
            WatchEvent::Listed => state.nodes_listed(&listed.take().unwrap_or_default()),
            WatchEvent::Error(_) => {}
        }
    }

    fn apply_pod_event(&self, event: WatchEvent<WatchedPod>) {
        match event {
            WatchEvent::Applied(Partial(pod)) => self.0.state.lock().apply_bound_pod(self.elapsed(), &pod),
            WatchEvent::Deleted(Partial(pod)) => self.0.state.lock().remove_bound_pod(&pod),
            // A pod that went while there was no watch is held for some minutes at most.
            WatchEvent::Restarted | WatchEvent::Listed | WatchEvent::Error(_) => {}
        }
    }

    fn apply_nomination_event(&self, event: WatchEvent<WatchedPod>, listed: &mut Option<HashSet<Arc<str>>>) {
        let mut state = self.0.state.lock();
        match event {
            WatchEvent::Restarted => *listed = Some(HashSet::new()),
            WatchEvent::Applied(Partial(pod)) => {
                if let Some(listed) = listed {
                    listed.insert(pod.metadata.uid.as_deref().unwrap_or_default().into());
                }
                state.apply_nominated_pod(&pod);
            }
            WatchEvent::Deleted(Partial(pod)) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                if let Some(listed) = listed {
                    listed.remove(&*uid);
                }
                state.remove_nominated_pod(&uid);
            }
            WatchEvent::Listed => state.nominated_pods_listed(&listed.take().unwrap_or_default()),
            WatchEvent::Error(_) => {}
        }
    }

    fn apply_map_event(&self, event: WatchEvent<ConfigMap>) {
        let data = match event {
            WatchEvent::Applied(map) => map.data.unwrap_or_default(),
            WatchEvent::Deleted(_) => BTreeMap::default(),
            WatchEvent::Restarted | WatchEvent::Listed | WatchEvent::Error(_) => return,
        };
        self.0.state.lock().set_avoid_table(&data);
    }
}
