//! All nodes of the process: those of the configuration, and those that backends add and remove.

mod open_backend;
mod upper_cluster;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{Instrument as _, error, info, info_span};
use vk_kube::{
    Client, Identity, Instance, UpperCluster, cluster_id::cluster_id_if_readable, lease::LeaseTimes,
};
use vk_node::{
    node::{self, Controller, NodeConfig, OnStop, Progress, Settings, SharedNodeWatch},
    pods::{
        self,
        admission::{Checks, RejectionPolicy},
        pod_store::PodStore,
        shared_trial_watch::SharedTrialWatch,
        trial::takes_trials,
        watch_pool::PodWatchPool,
    },
    resolve::{Limits, ResolverFactory, ServiceCache, Sources},
};
use vk_placement::ask::FitClient;
use vk_provider::{Backend, Context, Extensions, NodeEvent, Provider};
use vk_supervisor::{Clock, Supervisor, task};

use self::open_backend::open_backend;
use super::{
    address,
    exposition::Exposition,
    hostname::HostnameResolver,
    kubelet::{Kubelets, ServedNode},
    leadership::Leadership,
    node_impersonation::NodeImpersonation,
};
use crate::{
    Registry,
    cli::Failure,
    config::{self, Admission, DaemonSets, EffectiveConfig, OnShutdown, RefusedPods},
    version::kubelet_version_beside,
};

/// The label of our nodes, unless the user sets another value.
const OUR_LABEL: (&str, &str) = ("type", "virtual-kubelet");

/// The label that names the provider of a node.
pub(crate) const PROVIDER_LABEL: &str = "virtual-kubelet.io/provider";

/// The nodes. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    nodes: Arc<Mutex<BTreeMap<String, Member>>>,
    /// Supervisors of nodes that their backend removed: a node that returns under such a name waits for its tasks.
    removed: Arc<Mutex<BTreeMap<String, Supervisor>>>,
    /// Counts up whenever a node comes, goes or makes progress.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Member {
    supervisor: Supervisor,
    progress: watch::Receiver<Progress>,
}

/// What a fleet needs beside its configuration.
pub(super) struct Means {
    pub(super) client: Client,
    /// The identity of the client.
    pub(super) identity: Identity,
    /// Clients with which nodes read what their pods refer to.
    pub(super) readers: NodeImpersonation,
    pub(super) metrics: node::Metrics,
    pub(super) kubelets: Kubelets,
    /// Asks nodes of this process directly, if it places pods, too.
    pub(super) fit_client: FitClient,
    pub(super) exposition: Exposition,
}

/// What all controllers of this process have in common.
#[derive(Clone)]
struct Common {
    client: Client,
    /// The access to the cluster that backends have.
    upper: UpperCluster,
    /// Clients with which nodes read what their pods refer to: see [`Common::reader`].
    readers: NodeImpersonation,
    /// Whether the process also writes as the node that it writes for.
    acts_as_nodes: bool,
    settings: Settings,
    restricted: bool,
    shared: Option<SharedNodeWatch>,
    watches: PodWatchPool,
    trials: SharedTrialWatch,
    services: ServiceCache,
    metrics: node::Metrics,
    supervisor: Supervisor,
    /// How long calls on pods may take when the process stops.
    pods_limit: Duration,
    /// Policies about pods.
    policy: pods::Policy,
    kubelets: Kubelets,
    fit_client: FitClient,
    exposition: Exposition,
    hostnames: HostnameResolver,
    /// The kubelet version of the nodes.
    kubelet_version: String,
    declared_features: Option<BTreeSet<String>>,
}

// === impl Common ===

impl Common {
    /// The client with which a node reads what its pods refer to, and requests their tokens.
    fn reader(&self, node: &str) -> Client {
        self.readers.client_for(&self.client, node)
    }
}

// === impl Fleet ===

impl Fleet {
    /// Opens all backends, then starts their nodes: a backend that cannot be opened ends the process before any node exists.
    ///
    /// Nodes run under `supervisor`. The tasks of backends run under children of `process`, which stops later: a node that
    /// stops may still wait for its backend.
    pub(super) async fn start(
        config: EffectiveConfig,
        registry: &Registry,
        means: Means,
        supervisor: &Supervisor,
        process: &Supervisor,
    ) -> Result<Self, Failure> {
        let Means { client, identity, readers, metrics, kubelets, fit_client, exposition } = means;
        let acts_as_nodes = readers == NodeImpersonation::ReadsAndWrites;
        let restricted = identity.node().is_some() || acts_as_nodes;
        // One watch for all nodes if there are several. A node identity has only one node.
        let shared = (config.nodes.len() > 1).then(|| {
            let labels = format!("{}={}", OUR_LABEL.0, OUR_LABEL.1);
            SharedNodeWatch::start(client.clone(), &labels, supervisor)
        });
        let watches = PodWatchPool::new(client.clone(), config.nodes.len(), supervisor);
        let mut factories = config.nodes.iter().filter_map(|node| registry.get(&node.provider));
        let is_needed = factories.any(|factory| factory.needs_cluster_id());
        let cluster_id = async {
            if is_needed { cluster_id_if_readable(&client, config.startup_timeout).await } else { None }
        };
        let (server, cluster) = tokio::join!(upper_cluster::server_version(&client), cluster_id);
        let common = Common {
            services: ServiceCache::new(client.clone(), supervisor),
            watches,
            trials: SharedTrialWatch::new(client.clone(), supervisor),
            settings: settings(&config),
            restricted,
            shared,
            metrics,
            supervisor: supervisor.clone(),
            pods_limit: config.shutdown.timeout / 2,
            policy: policy(&config.pods, restricted),
            acts_as_nodes,
            upper: upper_cluster::access(&client, readers),
            readers,
            kubelet_version: kubelet_version_beside(server),
            declared_features: upper_cluster::features(server, config.streaming.web_sockets),
            kubelets,
            fit_client,
            exposition,
            hostnames: HostnameResolver::new(),
            client,
        };
        let detected = address::internal_ip(common.client.server());
        let fleet = Self::default();
        let mut opened = Vec::new();
        for node in config.nodes {
            let Some(factory) = registry.get(&node.provider) else {
                return Err(anyhow!("node {}: no provider {}", node.name, node.provider).into());
            };
            let extensions = Extensions::new().with(common.upper.clone());
            let context = context(&node, detected, &config.state_dir, process.child());
            let context = Context { extensions, cluster: cluster.clone(), ..context };
            let backend = open_backend(factory.as_ref(), &node, &context, config.startup_timeout).await?;
            let checks = checks(config.pods.admission, factory.elastic());
            opened.push((backend, node, context, checks));
        }
        for (backend, node, context, checks) in opened {
            let policy = pods::Policy { checks, ..common.policy.clone() };
            fleet.follow(&backend, node, context, &Common { policy, ..common.clone() });
        }
        common.watches.start();
        Ok(fleet)
    }

    /// Follows the nodes of a backend.
    fn follow(&self, backend: &Arc<dyn Backend>, node: config::Node, context: Context, common: &Common) {
        let (fleet, common, backend) = (self.clone(), common.clone(), Arc::clone(backend));
        let supervisor = common.supervisor.clone();
        let mut offers = backend.nodes().fuse();
        // Nodes that exist already count from now on.
        while let Some(Some(offer)) = offers.next().now_or_never() {
            self.take(offer, &node, &context, &common);
        }
        supervisor.clone().spawn(format!("backend of {}", node.name), task::Kind::Work, async move {
            loop {
                let offer = tokio::select! {
                    offer = offers.next() => offer,
                    () = supervisor.stopping() => None,
                };
                match offer {
                    Some(offer) => fleet.take(offer, &node, &context, &common),
                    // No more changes, or stopping. The backend lives as long as its nodes.
                    None => break supervisor.stopping().await,
                }
            }
            drop(backend);
        });
    }

    fn take(&self, offer: NodeEvent, node: &config::Node, context: &Context, common: &Common) {
        match offer {
            NodeEvent::Added(name, provider) => self.add(&name, provider, node, context, common),
            NodeEvent::Removed(name) => {
                common.fit_client.remove_local(&name);
                common.exposition.remove(&name);
                self.remove(&name);
            }
        }
    }

    fn add(
        &self,
        name: &str,
        provider: Arc<dyn Provider>,
        node: &config::Node,
        context: &Context,
        common: &Common,
    ) {
        let (sender, progress) = watch::channel(Progress::default());
        let supervisor = self.supervisor_of(name, common);
        let leadership = Leadership {
            progress: sender,
            supervisor: supervisor.clone(),
            pods_limit: common.pods_limit,
            elected: common.settings.lease.standby.is_some(),
        };
        let member = Member { supervisor: supervisor.clone(), progress: progress.clone() };
        self.nodes.lock().insert(name.to_owned(), member);
        // With several replicas, another process may run the node and know more about it.
        if common.settings.lease.standby.is_none() {
            common.fit_client.add_local(name, Arc::clone(&provider));
        }
        common.exposition.add(name, Arc::clone(&provider));
        self.report(progress.clone(), &common.supervisor);
        let addresses = [context.internal_ip].into_iter().chain(node.external_ip).collect();
        let hostname = common.hostnames.hostname(node.hostname.as_deref(), name, addresses);
        let (roll, seen) = (PodStore::default(), watch::Sender::new(None));
        let endpoint = common.kubelets.serve(ServedNode {
            name,
            node,
            context,
            provider: Arc::clone(&provider),
            pods: roll.clone(),
            hostname: hostname.clone(),
            observed_node: seen.subscribe(),
            supervisor: supervisor.clone(),
        });
        let context = &Context { kubelet_port: endpoint.port, ..context.clone() };
        let span = info_span!(parent: None, "node", node = %name);
        let (own, node, context, base) = (name.to_owned(), node.clone(), context.clone(), common.clone());
        let run = async move {
            let node = config::Node { hostname: hostname.await, ..node };
            let controllers = move |progress, session: &Supervisor| {
                // Writes for the node are fenced by its lease; each session has a fence of its own, which the backend uses too.
                let client = if base.acts_as_nodes { base.reader(&own) } else { base.client.clone() };
                let client = client.fenced(base.upper.begin_session(&own));
                let common = Common { client, supervisor: session.clone(), ..base.clone() };
                let facts = seen.clone();
                facts.send_replace(None);
                let (audit_failure, audit_failures) = watch::channel(None);
                let pods = pods(&own, &provider, &context, &common, facts.subscribe(), &roll);
                let pods = pods::Controller { audit_failure, ..pods };
                let node = controller(&own, Arc::clone(&provider), &node, &context, &common, progress, facts);
                let serving_key = endpoint.key.clone();
                (Controller { audit_failure: audit_failures, serving_key, ..node }, pods)
            };
            leadership.run(controllers).await
        };
        supervisor.spawn(format!("node {name}"), task::Kind::Critical, run.instrument(span));
    }

    /// A supervisor for a node. Its tasks wait for those of an earlier node of the same name.
    fn supervisor_of(&self, name: &str, common: &Common) -> Supervisor {
        let earlier = self.nodes.lock().remove(name).map(|member| member.supervisor);
        if earlier.is_some() {
            error!(node = name, "a backend offers two nodes of this name: stopping the first");
        }
        let removed = self.removed.lock().remove(name);
        match earlier.or(removed) {
            Some(earlier) => common.supervisor.child_after(&earlier, common.pods_limit * 2),
            None => common.supervisor.child(),
        }
    }

    /// Forwards a node's progress to the waiters for the whole fleet.
    fn report(&self, mut progress: watch::Receiver<Progress>, supervisor: &Supervisor) {
        let changes = self.changes.clone();
        supervisor.spawn("progress", task::Kind::Work, async move {
            loop {
                changes.send_modify(|count| *count = count.wrapping_add(1));
                if progress.changed().await.is_err() {
                    break;
                }
            }
        });
    }

    fn remove(&self, name: &str) {
        let Some(member) = self.nodes.lock().remove(name) else { return };
        info!(node = name, "the backend removed the node");
        member.supervisor.stop();
        let mut removed = self.removed.lock();
        removed.retain(|_, supervisor| !supervisor.is_idle());
        removed.insert(name.to_owned(), member.supervisor);
        drop(removed);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Names of the nodes that are not registered yet and not led by another replica.
    pub(super) fn unregistered(&self) -> Vec<String> {
        let nodes = self.nodes.lock();
        nodes
            .iter()
            .filter(|(_, node)| {
                let progress = node.progress.borrow();
                !progress.registered && !progress.on_standby
            })
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The number of nodes that another replica leads.
    pub(super) fn on_standby(&self) -> usize {
        self.nodes.lock().values().filter(|node| node.progress.borrow().on_standby).count()
    }

    /// Resolves when there is a node and all nodes are Ready.
    pub(super) async fn all_ready(&self) {
        let mut changes = self.changes.subscribe();
        let ready = |_: &u64| {
            let nodes = self.nodes.lock();
            !nodes.is_empty() && nodes.values().all(|node| node.progress.borrow().ready)
        };
        // The sender is in `self`, so this cannot fail.
        drop(changes.wait_for(ready).await);
    }
}

fn settings(config: &EffectiveConfig) -> Settings {
    let lease = config.timing.lease;
    Settings {
        ping_interval: config.timing.ping_interval,
        ping_timeout: config.timing.ping_timeout,
        status_interval: config.timing.status_interval,
        lease: LeaseTimes {
            duration: lease.duration,
            renew_deadline: lease.renew_deadline,
            standby: lease.leader_elect.then_some(lease.retry_period),
        },
        on_stop: match config.shutdown.node {
            _ if lease.leader_elect => OnStop::HandOver,
            OnShutdown::Leave => OnStop::Leave,
            OnShutdown::Delete => OnStop::Delete,
        },
    }
}

/// The context in which the backend of a node is opened, without the cluster. `supervisor` owns the backend's tasks.
pub(crate) fn context(
    node: &config::Node,
    detected: IpAddr,
    state_dir: &std::path::Path,
    supervisor: Supervisor,
) -> Context {
    Context {
        supervisor,
        node_name: node.name.clone(),
        internal_ip: node.internal_ip.or(node.address).filter(|ip| !ip.is_unspecified()).unwrap_or(detected),
        kubelet_port: node.port,
        operating_system: node.os.as_str().to_owned(),
        cluster_domain: node.cluster_domain.clone(),
        cluster: None,
        state_dir: state_dir.join(&node.name),
        shared_dir: state_dir.to_owned(),
        extensions: Extensions::default(),
    }
}

fn controller(
    name: &str,
    provider: Arc<dyn Provider>,
    node: &config::Node,
    context: &Context,
    common: &Common,
    progress: watch::Sender<Progress>,
    facts: watch::Sender<Option<Arc<Node>>>,
) -> Controller {
    // Tells others what is behind the node: for the provider `cluster`, nodes of `local` and `cri` are machines.
    let mut labels = node.labels.clone();
    labels.entry(PROVIDER_LABEL.to_owned()).or_insert_with(|| node.provider.clone());
    let config = NodeConfig {
        name: name.to_owned(),
        internal_ip: context.internal_ip,
        external_ip: node.external_ip,
        hostname: node.hostname.clone(),
        kubelet_port: context.kubelet_port,
        operating_system: context.operating_system.clone(),
        kubelet_version: common.kubelet_version.clone(),
        labels,
        annotations: node.annotations.clone(),
        taints: node.taints.clone(),
        declared_features: common.declared_features.clone(),
    };
    // A node without our label is not in the shared watch.
    let labelled = config.labels.get(OUR_LABEL.0).is_none_or(|value| value == OUR_LABEL.1);
    let observations = match common.shared.as_ref().filter(|_| labelled) {
        Some(shared) => shared.subscribe(&config.name),
        None => node::watch::watch_one(common.client.clone(), &config.name),
    };
    Controller {
        config,
        provider,
        settings: common.settings.clone(),
        client: common.client.clone(),
        restricted: common.restricted,
        observations,
        clock: Clock::system(),
        metrics: common.metrics.clone(),
        instance: Instance::current(),
        audit_failure: watch::Sender::new(None).subscribe(),
        serving_key: watch::Sender::new(None).subscribe(),
        progress,
        observed_node: facts,
    }
}

fn policy(pods: &config::Pods, restricted: bool) -> pods::Policy {
    pods::Policy {
        force_after: pods.force_delete_after,
        daemon_sets: match pods.daemon_sets {
            DaemonSets::Run => None,
            DaemonSets::Fail => Some(RejectionPolicy::Fail),
            DaemonSets::Hold => Some(RejectionPolicy::Hold),
        },
        refused: match pods.refused {
            RefusedPods::Fail => RejectionPolicy::Fail,
            RefusedPods::Hold => RejectionPolicy::Hold,
        },
        may_label: !restricted,
        events_per_second: pods.events_per_second,
        ..pods::Policy::default()
    }
}

fn checks(admission: Admission, elastic: bool) -> Checks {
    match admission {
        Admission::Auto if elastic => Checks::Placement,
        Admission::Auto | Admission::Full => Checks::Full,
        Admission::Placement => Checks::Placement,
        Admission::Off => Checks::Off,
    }
}

fn pods(
    name: &str,
    provider: &Arc<dyn Provider>,
    context: &Context,
    common: &Common,
    facts: watch::Receiver<Option<Arc<Node>>>,
    roll: &PodStore,
) -> pods::Controller {
    let sources = Sources {
        client: common.reader(name),
        services: common.services.clone(),
        node: name.to_owned(),
        ips: vec![context.internal_ip],
        observed_node: facts.clone(),
        clock: Clock::system(),
        limits: Limits::default(),
        watches: common.metrics.object_watches.clone(),
    };
    pods::Controller {
        node: name.to_owned(),
        provider: Arc::clone(provider),
        client: common.client.clone(),
        policy: pods::Policy { host_ips: vec![context.internal_ip.to_string()], ..common.policy.clone() },
        pod_watch: roll.follow(common.watches.for_node(name)),
        trial_watch: takes_trials(provider.as_ref(), name, common.restricted)
            .then(|| common.trials.for_node(name)),
        pod_store: roll.clone(),
        node_object: facts,
        audit_failure: watch::Sender::new(None),
        resolvers: ResolverFactory::new(sources, &common.supervisor),
        clock: Clock::system(),
    }
}

#[cfg(test)]
mod tests;
