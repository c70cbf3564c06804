//! All nodes of the process: those that the configuration names, and those that a backend adds and removes as it goes.

mod opening;

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
use tracing::{Instrument as _, error, info, info_span, warn};
use vk_kube::{Client, Fence, Identity, UpperCluster, Version};
use vk_node::{
    node::{self, Base, Controller, Instance, OnStop, Progress, Settings, Shared},
    pods::{
        self,
        admission::{Checks, RejectionPolicy},
        pod_store::PodStore,
        watch_pool::PodWatchPool,
    },
    resolve::{Limits, ResolverFactory, ServiceCache, Sources},
};
use vk_provider::{Backend, Context, Extensions, NodeEvent, Provider};
use vk_supervisor::{Clock, Supervisor, task};

use self::opening::open;
use super::{
    address,
    kubelet::{Kubelets, Served},
    readers::Readers,
    terms::Terms,
};
use crate::{
    Registry,
    cli::Failure,
    config::{self, Admission, DaemonSets, OnShutdown, RefusedPods, Resolved},
    version::kubelet_version_beside,
};

/// The label that our nodes carry, unless the user wants another value.
const OUR_LABEL: (&str, &str) = ("type", "virtual-kubelet");

/// Exec, attach and port-forward come as WebSockets all the way.
const WEB_SOCKETS: &str = "ExtendWebSocketsToKubelet";
/// The first version whose API server looks at it.
const WEB_SOCKETS_SINCE: Version = Version { major: 1, minor: 36 };

/// The nodes. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    nodes: Arc<Mutex<BTreeMap<String, Member>>>,
    /// Counts up whenever a node comes, goes or gets further.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Member {
    supervisor: Supervisor,
    progress: watch::Receiver<Progress>,
}

/// What a fleet is started with, beside its configuration.
pub(super) struct Means {
    pub(super) client: Client,
    /// As whom the client is known.
    pub(super) identity: Identity,
    /// As whom nodes read what their pods refer to.
    pub(super) readers: Readers,
    pub(super) metrics: node::Metrics,
    pub(super) kubelets: Kubelets,
}

/// What every controller of this process is made of.
#[derive(Clone)]
struct Common {
    client: Client,
    /// As whom nodes read what their pods refer to: see [`Common::reader`].
    readers: Readers,
    settings: Settings,
    restricted: bool,
    shared: Option<Shared>,
    watches: PodWatchPool,
    services: ServiceCache,
    metrics: node::Metrics,
    supervisor: Supervisor,
    /// How much of the time for stopping the calls on pods may take.
    pods_limit: Duration,
    /// Policies about pods.
    policy: pods::Policy,
    kubelets: Kubelets,
    /// What the nodes claim.
    kubelet_version: String,
    declared_features: BTreeSet<String>,
}

// === impl Common ===

impl Common {
    /// The client through which a node reads what its pods refer to, and asks for their tokens.
    fn reader(&self, node: &str) -> Client {
        self.readers.of(&self.client, node)
    }
}

// === impl Fleet ===

impl Fleet {
    /// Opens the backends and starts their nodes: none before all are open, because one that is refused ends the process.
    pub(super) async fn start(
        config: Resolved,
        registry: &Registry,
        means: Means,
        supervisor: &Supervisor,
    ) -> Result<Self, Failure> {
        let Means { client, identity, readers, metrics, kubelets } = means;
        let restricted = identity.node().is_some();
        // One watch for all of them, where there are several: a node identity has only one.
        let shared = (config.nodes.len() > 1).then(|| {
            let labels = format!("{}={}", OUR_LABEL.0, OUR_LABEL.1);
            Shared::start(client.clone(), &labels, supervisor)
        });
        let watches = PodWatchPool::new(client.clone(), config.nodes.len(), supervisor);
        let server = server_version(&client).await;
        let common = Common {
            services: ServiceCache::new(client.clone(), supervisor),
            watches,
            settings: settings(&config),
            restricted,
            shared,
            metrics,
            supervisor: supervisor.clone(),
            pods_limit: config.shutdown.timeout / 2,
            policy: policy(&config.pods, restricted),
            readers,
            kubelet_version: kubelet_version_beside(server),
            declared_features: features(server, config.streaming.web_sockets),
            kubelets,
            client,
        };
        let detected = address::internal_ip(common.client.server());
        let fleet = Self { nodes: Arc::default(), changes: watch::Sender::new(0) };
        let upper = upper(&common);
        let mut opened = Vec::new();
        for node in config.nodes {
            let Some(factory) = registry.get(&node.provider) else {
                return Err(anyhow!("node {}: no provider {}", node.name, node.provider).into());
            };
            let extensions = Extensions::new().with(upper.clone());
            let context = Context { extensions, ..context(&node, detected, &config.state_dir) };
            let backend = open(factory.as_ref(), &node, &context, config.startup_timeout).await?;
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

    /// Keeps up with the nodes that a backend offers.
    fn follow(&self, backend: &Arc<dyn Backend>, node: config::Node, context: Context, common: &Common) {
        let (fleet, common, backend) = (self.clone(), common.clone(), Arc::clone(backend));
        let supervisor = common.supervisor.clone();
        let mut offers = backend.nodes().fuse();
        // Nodes that are there already are not waited for by anybody: they count from now on.
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
                    // No more changes, or the end. The backend lives as long as its nodes do.
                    None => break supervisor.stopping().await,
                }
            }
            drop(backend);
        });
    }

    fn take(&self, offer: NodeEvent, node: &config::Node, context: &Context, common: &Common) {
        match offer {
            NodeEvent::Added(name, provider) => self.add(&name, provider, node, context, common),
            NodeEvent::Removed(name) => self.remove(&name),
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
        let supervisor = common.supervisor.child();
        let terms = Terms {
            progress: sender,
            supervisor: supervisor.clone(),
            pods_limit: common.pods_limit,
            elected: common.settings.lease.standby.is_some(),
        };
        let member = Member { supervisor: supervisor.clone(), progress: progress.clone() };
        let earlier = self.nodes.lock().insert(name.to_owned(), member);
        if let Some(earlier) = earlier {
            error!(node = name, "a backend offers a node of this name twice: the earlier one is stopped");
            earlier.supervisor.stop();
        }
        self.report(progress.clone(), &common.supervisor);
        let (roll, seen) = (PodStore::default(), watch::Sender::new(None));
        let kubelet_port = common.kubelets.serve(Served {
            name,
            node,
            context,
            provider: Arc::clone(&provider),
            roll: roll.clone(),
            seen: seen.subscribe(),
            supervisor: supervisor.clone(),
        });
        let context = &Context { kubelet_port, ..context.clone() };
        let span = info_span!(parent: None, "node", node = %name);
        let (own, node, context, base) = (name.to_owned(), node.clone(), context.clone(), common.clone());
        let begin = move |progress| {
            // Nothing is written for the node but in the time that its lease gives; each term has its own.
            let common = Common { client: base.client.fenced(Fence::default()), ..base.clone() };
            let facts = seen.clone();
            facts.send_replace(None);
            let pods = pods(&own, &provider, &context, &common, facts.subscribe(), &roll);
            (controller(&own, Arc::clone(&provider), &node, &context, &common, progress, facts), pods)
        };
        let run = terms.serve(begin).instrument(span);
        // It belongs to the whole process: the process waits for it when it stops.
        common.supervisor.spawn(
            format!("node {name}"),
            task::Kind::Critical,
            keep(run, common.supervisor.clone()),
        );
    }

    /// Passes on a node's progress to whoever waits for the whole fleet.
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
        info!(node = name, "the backend took the node back");
        member.supervisor.stop();
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Names of the nodes that were not registered yet, and that no other replica leads.
    pub(super) fn unregistered(&self) -> Vec<String> {
        let nodes = self.nodes.lock();
        nodes
            .iter()
            .filter(|(_, node)| {
                let progress = node.progress.borrow();
                !progress.registered && !progress.standing_by
            })
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// How many nodes another replica leads.
    pub(super) fn standing_by(&self) -> usize {
        self.nodes.lock().values().filter(|node| node.progress.borrow().standing_by).count()
    }

    /// Resolves when there is a node and all nodes are Ready.
    pub(super) async fn all_ready(&self) {
        let mut changes = self.changes.subscribe();
        let ready = |_: &u64| {
            let nodes = self.nodes.lock();
            !nodes.is_empty() && nodes.values().all(|node| node.progress.borrow().ready)
        };
        // The sender lives in `self`: this cannot fail.
        drop(changes.wait_for(ready).await);
    }
}

/// What backends may have of the cluster itself.
fn upper(common: &Common) -> UpperCluster {
    let (client, readers) = (common.client.clone(), common.readers.clone());
    UpperCluster::new(common.client.clone(), common.supervisor.clone(), move |node| readers.of(&client, node))
}

/// A node that the backend took back may end; the process goes on without it.
pub(super) async fn keep<E>(
    run: impl Future<Output = Result<(), E>>,
    supervisor: Supervisor,
) -> Result<(), E> {
    run.await?;
    supervisor.stopping().await;
    Ok(())
}

/// Of which Kubernetes the API server is, if it tells.
async fn server_version(client: &Client) -> Option<Version> {
    match Version::ask(client).await {
        Ok(version) => Some(version),
        Err(error) => {
            warn!(%error, "the API server does not tell its version: the nodes declare no features");
            None
        }
    }
}

/// The features that our nodes have and the API server knows of: a field that it does not know would be refused.
fn features(server: Option<Version>, web_sockets: bool) -> BTreeSet<String> {
    let known = server.is_some_and(|version| version >= WEB_SOCKETS_SINCE);
    (web_sockets && known).then(|| WEB_SOCKETS.to_owned()).into_iter().collect()
}

fn settings(config: &Resolved) -> Settings {
    let lease = config.timing.lease;
    Settings {
        ping_interval: config.timing.ping_interval,
        ping_timeout: config.timing.ping_timeout,
        status_interval: config.timing.status_interval,
        lease: node::Terms {
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

/// What a provider is told about its node.
pub(crate) fn context(node: &config::Node, detected: IpAddr, state_dir: &std::path::Path) -> Context {
    Context {
        node_name: node.name.clone(),
        internal_ip: node.internal_ip.or(node.address).filter(|ip| !ip.is_unspecified()).unwrap_or(detected),
        kubelet_port: node.port,
        operating_system: node.os.as_str().to_owned(),
        cluster_domain: node.cluster_domain.clone(),
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
    let base = Base {
        name: name.to_owned(),
        internal_ip: context.internal_ip,
        external_ip: node.external_ip,
        kubelet_port: context.kubelet_port,
        operating_system: context.operating_system.clone(),
        kubelet_version: common.kubelet_version.clone(),
        labels: node.labels.clone(),
        annotations: node.annotations.clone(),
        taints: node.taints.clone(),
        declared_features: common.declared_features.clone(),
    };
    // A node without our label is not in the shared watch.
    let labelled = base.labels.get(OUR_LABEL.0).is_none_or(|value| value == OUR_LABEL.1);
    let sights = match common.shared.as_ref().filter(|_| labelled) {
        Some(shared) => shared.of(&base.name),
        None => node::watch::one(common.client.clone(), &base.name),
    };
    Controller {
        base,
        provider,
        settings: common.settings.clone(),
        client: common.client.clone(),
        restricted: common.restricted,
        sights,
        clock: Clock::system(),
        metrics: common.metrics.clone(),
        instance: Instance::this(),
        progress,
        facts,
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
        facts: facts.clone(),
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
        pod_store: roll.clone(),
        node_object: facts,
        resolvers: ResolverFactory::new(sources, &common.supervisor),
        clock: Clock::system(),
    }
}
