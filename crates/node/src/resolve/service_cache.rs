//! The services of the cluster, for the variables that containers get: one watch for all nodes of the process, opened when a
//! container asks for the first time.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tokio::sync::watch;
use vk_kube::{Client, Objects, Selector, WatchEvent};
use vk_provider::{Error, Result, error};
use vk_supervisor::{Supervisor, task};

use super::unreadable;

/// How long a question waits for the first listing.
const PATIENCE: Duration = Duration::from_secs(10);

/// By namespace, and then by name.
type Known = BTreeMap<String, BTreeMap<String, Arc<Service>>>;

/// The services of the cluster. Clones are the same.
#[derive(Clone)]
pub struct ServiceCache(Arc<Inner>);

struct Inner {
    client: Client,
    supervisor: Supervisor,
    state: OnceLock<watch::Receiver<State>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// A listing was complete once.
    listed: bool,
    known: Known,
    trouble: Option<(error::Kind, String)>,
}

// === impl ServiceCache ===

impl ServiceCache {
    /// Reads nothing yet.
    pub fn new(client: Client, supervisor: &Supervisor) -> Self {
        Self(Arc::new(Inner { client, supervisor: supervisor.clone(), state: OnceLock::new() }))
    }

    /// The services of a namespace that have an address of the cluster, by name.
    pub(super) async fn of(&self, namespace: &str) -> Result<Vec<Arc<Service>>> {
        self.ask(|known| known.get(namespace).into_iter().flat_map(BTreeMap::values).cloned().collect()).await
    }

    /// One service, if it is there and has an address of the cluster.
    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<Service>>> {
        self.ask(|known| known.get(namespace)?.get(name).cloned()).await
    }

    /// A container that starts before the services are known would miss some for ever: it waits.
    async fn ask<T>(&self, question: impl FnOnce(&Known) -> T) -> Result<T> {
        let mut state = self.0.state.get_or_init(|| self.start()).clone();
        let answered = |state: &State| state.listed || state.trouble.is_some();
        drop(tokio::time::timeout(PATIENCE, state.wait_for(answered)).await);
        let state = state.borrow();
        if state.listed {
            return Ok(question(&state.known));
        }
        let (kind, reason) = match &state.trouble {
            Some((kind, reason)) => (kind.clone(), reason.as_str()),
            None => (error::Kind::Unavailable, "no answer yet"),
        };
        Err(Error::new(kind, format!("read the services, for the environment: {reason}")))
    }

    fn start(&self) -> watch::Receiver<State> {
        let (sender, receiver) = watch::channel(State::default());
        let (client, guard) = (self.0.client.clone(), self.0.supervisor.clone());
        self.0.supervisor.spawn("services", task::Kind::Work, async move {
            tokio::select! {
                () = follow(client, sender) => {}
                () = guard.stopping() => {}
            }
        });
        receiver
    }
}

async fn follow(client: Client, sender: watch::Sender<State>) {
    let services = Objects::<Service>::all(client);
    let mut changes = std::pin::pin!(services.watch_trimmed(&Selector::default(), slim));
    // What a listing found so far; what was known before holds until it is complete.
    let mut listing: Option<Known> = None;
    while let Some(change) = changes.next().await {
        match change {
            WatchEvent::Restarted => listing = Some(Known::new()),
            WatchEvent::Applied(service) => match &mut listing {
                Some(listing) => note(listing, service),
                None => sender.send_modify(|state| note(&mut state.known, service)),
            },
            WatchEvent::Deleted(service) => match &mut listing {
                Some(listing) => drop_from(listing, &service),
                None => sender.send_modify(|state| drop_from(&mut state.known, &service)),
            },
            WatchEvent::Listed => {
                if let Some(known) = listing.take() {
                    sender.send_replace(State { listed: true, known, trouble: None });
                }
            }
            WatchEvent::Error(error) => {
                let kind = unreadable(&error);
                sender.send_modify(|state| state.trouble = Some((kind, error.message)));
            }
        }
    }
}

fn key(service: &Service) -> (String, String) {
    let metadata = &service.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

fn note(known: &mut Known, service: Service) {
    let addressed = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref())
        .is_some_and(|ip| !ip.is_empty() && ip != "None");
    if !addressed {
        return drop_from(known, &service);
    }
    let (namespace, name) = key(&service);
    known.entry(namespace).or_default().insert(name, Arc::new(service));
}

fn drop_from(known: &mut Known, service: &Service) {
    let (namespace, name) = key(service);
    if let Some(services) = known.get_mut(&namespace) {
        services.remove(&name);
        if services.is_empty() {
            known.remove(&namespace);
        }
    }
}

/// Leaves what variables are made of.
fn slim(service: &mut Service) {
    let metadata = std::mem::take(&mut service.metadata);
    service.metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    };
    service.status = None;
    let Some(spec) = service.spec.take() else { return };
    let ports = spec.ports.map(|ports| {
        let slim = |port: ServicePort| ServicePort {
            name: port.name,
            port: port.port,
            protocol: port.protocol,
            ..ServicePort::default()
        };
        ports.into_iter().map(slim).collect()
    });
    service.spec = Some(ServiceSpec {
        cluster_ip: spec.cluster_ip,
        cluster_ips: spec.cluster_ips,
        ports,
        ..ServiceSpec::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(namespace: &str, name: &str, ip: &str) -> Service {
        let spec = json!({"clusterIP": ip, "selector": {"app": "x"}, "ports": [{"port": 80, "nodePort": 3}]});
        let metadata = json!({"namespace": namespace, "name": name, "labels": {"a": "b"}});
        let mut service = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        slim(&mut service);
        service
    }

    #[test]
    fn only_what_variables_are_made_of_is_kept() {
        let slim = service("shop", "db", "10.0.0.1");
        assert!(slim.metadata.labels.is_none());
        let spec = slim.spec.unwrap();
        assert!(spec.selector.is_none());
        assert_eq!(spec.ports.unwrap()[0].node_port, None);
    }

    #[test]
    fn services_without_an_address_are_none_and_one_that_loses_it_goes() {
        let mut known = Known::new();
        note(&mut known, service("shop", "headless", "None"));
        note(&mut known, service("shop", "external", ""));
        assert!(known.is_empty());
        note(&mut known, service("shop", "db", "10.0.0.1"));
        assert!(known["shop"].contains_key("db"));
        note(&mut known, service("shop", "db", "None"));
        assert!(known.is_empty());
    }
}
