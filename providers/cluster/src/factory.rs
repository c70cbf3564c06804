//! Opens the provider from its configuration.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{
    StreamExt as _, stream,
    stream::{BoxStream, FuturesUnordered},
};
use vk_kube::{Client, Kind as ErrorKind, Source, UpperCluster};
use vk_provider::{
    Abilities, Backend, Config, Context, Error, Factory, Finding, NodeEvent, Result, error::Kind,
};
use vk_supervisor::Clock;

use crate::{
    config::Settings,
    doctor,
    lower_cluster::{self, LowerCluster},
    names::Owner,
    provider::{ClusterProvider, ClusterProviderOptions},
};

/// The factory of the provider `cluster`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterFactory;

/// How long nodes wait for a lower cluster that does not answer. One that does is known by then, so that no node is ever told to have
/// nothing because nobody has looked yet.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether all is known.
const PACE: Duration = Duration::from_millis(20);

/// The virtual nodes of one lower cluster.
struct VirtualNodes {
    lower: LowerCluster,
    nodes: Vec<(String, ClusterProvider)>,
}

#[async_trait]
impl Factory for ClusterFactory {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn description(&self) -> &'static str {
        "another Kubernetes cluster, as one node or several"
    }

    fn abilities(&self) -> Abilities {
        Abilities { logs: true, exec: true, attach: true, port_forward: true, stats: true }
    }

    /// The lower scheduler decides what fits where; the sum over its nodes is no promise.
    fn elastic(&self) -> bool {
        true
    }

    /// The lower cluster need not answer: the nodes are NotReady until it does, and other clusters of this process do not wait for it.
    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>> {
        let settings = Settings::read(&config)?;
        let upper: UpperCluster = context
            .extensions
            .get()
            .ok_or_else(|| Error::internal("the process does not lend its API server's client"))?;
        let origin = match &settings.origin {
            Some(origin) => origin.clone(),
            None => cluster_id(&upper.client).await?,
        };
        // Last of what can fail and be tried again: it leaves somebody who looks after the file.
        let client = connect(&settings, &upper).await?;
        let lower = LowerCluster::start(lower_cluster::LowerClusterOptions {
            client,
            origin: origin.clone(),
            cluster: settings.cluster.clone(),
            namespaces: settings.namespaces.clone(),
            supervisor: upper.supervisor.clone(),
        });
        let nodes = settings.by_node(&context.node_name).into_iter().map(|(name, settings)| {
            let provider = ClusterProvider::new(ClusterProviderOptions {
                upper: upper.clone(),
                lower: lower.clone(),
                owner: Owner { origin: origin.clone(), node: name.clone() },
                settings,
                clock: Clock::system(),
            });
            (name, provider)
        });
        let nodes = nodes.collect();
        Ok(Arc::new(VirtualNodes { lower, nodes }))
    }

    async fn examine(&self, config: Config, _context: Context) -> Vec<Finding> {
        match Settings::read(&config) {
            Ok(settings) => doctor::examine(&settings).await,
            Err(error) => vec![Finding::error("configuration", error.message(), "correct it")],
        }
    }
}

impl Backend for VirtualNodes {
    fn nodes(&self) -> BoxStream<'static, NodeEvent> {
        let (lower, nodes) = (self.lower.clone(), self.nodes.clone());
        let offered = async move {
            drop(tokio::time::timeout(PATIENCE, known(&lower)).await);
            let offer = |(name, provider): &(String, ClusterProvider)| {
                provider.update_resources();
                NodeEvent::Added(name.clone(), Arc::new(provider.clone()))
            };
            let added: Vec<NodeEvent> = nodes.iter().map(offer).collect();
            // Those that are given up go, one by one.
            let removed: FuturesUnordered<_> = nodes.into_iter().map(given_up).collect();
            stream::iter(added).chain(removed.flatten_unordered(None))
        };
        stream::once(offered).flatten().boxed()
    }
}

/// Takes a node back whose lower cluster was given up, and then deletes it.
async fn given_up((name, provider): (String, ClusterProvider)) -> BoxStream<'static, NodeEvent> {
    provider.removed().await;
    let rest = async move {
        provider.remove_node().await;
        stream::empty()
    };
    stream::iter([NodeEvent::Removed(name)]).chain(stream::once(rest).flatten()).boxed()
}

/// Resolves when all is known of a lower cluster that has to be.
async fn known(lower: &LowerCluster) {
    while lower.check_synced().is_err() || lower.identity().refresh(lower.client()).await.is_err() {
        tokio::time::sleep(PACE).await;
    }
}

/// A client of the lower cluster. Nothing is asked of it yet.
async fn connect(settings: &Settings, upper: &UpperCluster) -> Result<Client> {
    let Some(path) = settings.kubeconfig.clone() else {
        return Err(Error::invalid(
            "kubeconfig: say how the lower cluster is reached: --client-kubeconfig FILE, or `kubeconfig` in the provider's configuration",
        ));
    };
    let source = Source { kubeconfig: Some(path), server: None };
    source
        .connect(&upper.supervisor, upper.client.metrics().clone())
        .await
        .map_err(|error| Error::invalid(format!("the lower cluster: {error}")))
}

/// What the upper cluster is called below.
async fn cluster_id(upper: &Client) -> Result<String> {
    lower_cluster::cluster_id(upper).await.map_err(|error| {
        let denied = matches!(error.kind, ErrorKind::Forbidden | ErrorKind::Unauthorized);
        let hint = if denied {
            ": give `origin` in the provider's configuration, a name that no other upper cluster of the lower one has"
        } else {
            ""
        };
        let message = format!("read namespace kube-system, whose UID is the cluster's id: {error}{hint}");
        Error::new(if denied { Kind::Denied } else { Kind::Unavailable }, message)
    })
}
