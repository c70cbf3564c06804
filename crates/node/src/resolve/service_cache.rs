//! Cache of the cluster's services, for the service environment variables of containers. One watch for all nodes of the
//! process, opened on first use.

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

use super::read_error_kind;

/// How long a caller waits for the first list.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Services by namespace and name.
type ServiceIndex = BTreeMap<String, BTreeMap<String, Arc<Service>>>;

/// The cluster's services. Clones share the cache.
#[derive(Clone)]
pub struct ServiceCache(Arc<Inner>);

struct Inner {
    client: Client,
    supervisor: Supervisor,
    state: OnceLock<watch::Receiver<State>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// At least one list is complete.
    listed: bool,
    services: ServiceIndex,
    last_error: Option<(error::Kind, String)>,
}

// === impl ServiceCache ===

impl ServiceCache {
    /// Does not read anything yet.
    pub fn new(client: Client, supervisor: &Supervisor) -> Self {
        Self(Arc::new(Inner { client, supervisor: supervisor.clone(), state: OnceLock::new() }))
    }

    /// The services of a namespace that have a cluster IP, sorted by name.
    pub(super) async fn in_namespace(&self, namespace: &str) -> Result<Vec<Arc<Service>>> {
        self.query(|services| {
            services.get(namespace).into_iter().flat_map(BTreeMap::values).cloned().collect()
        })
        .await
    }

    /// One service, if it exists and has a cluster IP.
    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<Service>>> {
        self.query(|services| services.get(namespace)?.get(name).cloned()).await
    }

    /// Waits for the first list: a container that starts earlier would miss variables for its whole lifetime.
    async fn query<T>(&self, read: impl FnOnce(&ServiceIndex) -> T) -> Result<T> {
        let mut state = self.0.state.get_or_init(|| self.start()).clone();
        let answered = |state: &State| state.listed || state.last_error.is_some();
        drop(tokio::time::timeout(READ_TIMEOUT, state.wait_for(answered)).await);
        let state = state.borrow();
        if state.listed {
            return Ok(read(&state.services));
        }
        let (kind, reason) = match &state.last_error {
            Some((kind, reason)) => (kind.clone(), reason.as_str()),
            None => (error::Kind::Unavailable, "no response yet"),
        };
        Err(Error::new(kind, format!("list services for the container environment: {reason}")))
    }

    fn start(&self) -> watch::Receiver<State> {
        let (sender, receiver) = watch::channel(State::default());
        let (client, supervisor) = (self.0.client.clone(), self.0.supervisor.clone());
        self.0.supervisor.spawn("services", task::Kind::Work, async move {
            tokio::select! {
                () = follow(client, sender) => {}
                () = supervisor.stopping() => {}
            }
        });
        receiver
    }
}

async fn follow(client: Client, sender: watch::Sender<State>) {
    let services = Objects::<Service>::all(client);
    let mut changes = std::pin::pin!(services.watch_trimmed(&Selector::default(), trim));
    // Services of an incomplete list. The previous state stays valid until it is complete.
    let mut listing: Option<ServiceIndex> = None;
    while let Some(change) = changes.next().await {
        match change {
            WatchEvent::Restarted => listing = Some(ServiceIndex::new()),
            WatchEvent::Applied(service) => match &mut listing {
                Some(listing) => insert(listing, service),
                None => sender.send_modify(|state| insert(&mut state.services, service)),
            },
            WatchEvent::Deleted(service) => match &mut listing {
                Some(listing) => remove(listing, &service),
                None => sender.send_modify(|state| remove(&mut state.services, &service)),
            },
            WatchEvent::Listed => {
                if let Some(services) = listing.take() {
                    sender.send_replace(State { listed: true, services, last_error: None });
                }
            }
            WatchEvent::Error(error) => {
                let kind = read_error_kind(&error);
                sender.send_modify(|state| state.last_error = Some((kind, error.message)));
            }
        }
    }
}

fn key(service: &Service) -> (String, String) {
    let metadata = &service.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

fn insert(services: &mut ServiceIndex, service: Service) {
    let addressed = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref())
        .is_some_and(|ip| !ip.is_empty() && ip != "None");
    if !addressed {
        return remove(services, &service);
    }
    let (namespace, name) = key(&service);
    services.entry(namespace).or_default().insert(name, Arc::new(service));
}

fn remove(services: &mut ServiceIndex, service: &Service) {
    let (namespace, name) = key(service);
    if let Some(in_namespace) = services.get_mut(&namespace) {
        in_namespace.remove(&name);
        if in_namespace.is_empty() {
            services.remove(&namespace);
        }
    }
}

/// Keeps only the fields that the variables need.
fn trim(service: &mut Service) {
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
        let trim = |port: ServicePort| ServicePort {
            name: port.name,
            port: port.port,
            protocol: port.protocol,
            ..ServicePort::default()
        };
        ports.into_iter().map(trim).collect()
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
        trim(&mut service);
        service
    }

    #[test]
    fn only_the_fields_for_variables_are_kept() {
        let trim = service("shop", "db", "10.0.0.1");
        assert!(trim.metadata.labels.is_none());
        let spec = trim.spec.unwrap();
        assert!(spec.selector.is_none());
        assert_eq!(spec.ports.unwrap()[0].node_port, None);
    }

    #[test]
    fn services_without_a_cluster_ip_are_not_cached() {
        let mut services = ServiceIndex::new();
        insert(&mut services, service("shop", "headless", "None"));
        insert(&mut services, service("shop", "external", ""));
        assert!(services.is_empty());
        insert(&mut services, service("shop", "db", "10.0.0.1"));
        assert!(services["shop"].contains_key("db"));
        insert(&mut services, service("shop", "db", "None"));
        assert!(services.is_empty());
    }
}
