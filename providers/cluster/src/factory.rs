//! Opens the provider from its configuration.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{
    StreamExt as _, stream,
    stream::{BoxStream, FuturesUnordered},
};
use vk_kube::{Client, ClientOptions, Kind as ErrorKind, UpperCluster};
use vk_provider::{
    Abilities, Backend, Config, Context, Error, ExplainRequest, Explanation, Factory, Finding, NodeEvent,
    Result, error::Kind,
};
use vk_supervisor::{Clock, Supervisor};

use crate::{
    config::Settings,
    copies::UpperWatches,
    doctor,
    explanation::explain,
    lower_cluster::{self, LowerCluster},
    names::OwnerId,
    provider::{ClusterProvider, ClusterProviderOptions},
};

/// The factory of the provider `cluster`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterFactory;

/// How long the nodes wait for the first list of the lower cluster, so that no node is registered with empty resources only because they
/// are not known yet.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the state is checked meanwhile.
const SYNC_POLL: Duration = Duration::from_millis(20);

/// The virtual nodes of one lower cluster.
struct ClusterBackend {
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
        Abilities { logs: true, exec: true, attach: true, port_forward: true, stats: true, fit: true }
    }

    /// The lower scheduler decides what fits where. The sum over the lower nodes guarantees nothing.
    fn elastic(&self) -> bool {
        true
    }

    fn node_names(&self, config: &Config, node_name: &str) -> Vec<String> {
        // An invalid configuration is reported when it is opened.
        let Ok(settings) = Settings::read(config) else { return Vec::new() };
        settings.by_node(node_name).into_iter().map(|(name, _)| name).collect()
    }

    /// Does not need an answer from the lower cluster. The nodes are NotReady until it answers, and other clusters of this process do not
    /// wait.
    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>> {
        let settings = Settings::read(&config)?;
        let upper: UpperCluster = context.extensions.get().ok_or_else(|| {
            Error::internal("the process does not provide a client of the upper API server")
        })?;
        let origin = match &settings.origin {
            Some(origin) => origin.clone(),
            None => cluster_id(&upper.client).await?,
        };
        // The last fallible step, because it spawns a task that watches the kubeconfig file.
        let client = connect(&settings, &upper, &context.supervisor).await?;
        let lower = LowerCluster::start(lower_cluster::LowerClusterOptions {
            client,
            origin: origin.clone(),
            cluster: settings.cluster.clone(),
            namespaces: settings.namespaces.clone(),
            autoscales: settings.autoscales,
            supervisor: context.supervisor.clone(),
        });
        let upper_watches = Arc::new(UpperWatches::new(&upper.client, &context.supervisor));
        let nodes = settings.by_node(&context.node_name).into_iter().map(|(name, settings)| {
            let provider = ClusterProvider::new(ClusterProviderOptions {
                upper: upper.clone(),
                upper_watches: Arc::clone(&upper_watches),
                lower: lower.clone(),
                owner: OwnerId { origin: origin.clone(), node: name.clone() },
                settings,
                clock: Clock::system(),
                supervisor: context.supervisor.clone(),
            });
            (name, provider)
        });
        let nodes = nodes.collect();
        Ok(Arc::new(ClusterBackend { lower, nodes }))
    }

    async fn examine(&self, config: Config, _context: Context) -> Vec<Finding> {
        match Settings::read(&config) {
            Ok(settings) => doctor::examine(&settings).await,
            Err(error) => vec![Finding::error("configuration", error.message(), "correct the configuration")],
        }
    }

    async fn explain(
        &self,
        config: Config,
        context: Context,
        request: ExplainRequest,
    ) -> Result<Explanation> {
        let nodes = Settings::read(&config)?.by_node(&context.node_name);
        // Virtual nodes of one lower cluster differ only in which lower nodes they stand for.
        let explained = nodes.first().map(|(name, settings)| explain(&request.pod, name, &settings.policy));
        Ok(explained.unwrap_or_else(Explanation::unchanged))
    }
}

impl Backend for ClusterBackend {
    fn nodes(&self) -> BoxStream<'static, NodeEvent> {
        let (lower, nodes) = (self.lower.clone(), self.nodes.clone());
        let offered = async move {
            drop(tokio::time::timeout(SYNC_TIMEOUT, wait_until_synced(&lower)).await);
            let offer = |(name, provider): &(String, ClusterProvider)| {
                provider.update_resources();
                NodeEvent::Added(name.clone(), Arc::new(provider.clone()))
            };
            let added: Vec<NodeEvent> = nodes.iter().map(offer).collect();
            // Nodes of abandoned clusters are removed one by one.
            let removed: FuturesUnordered<_> = nodes.into_iter().map(removal_events).collect();
            stream::iter(added).chain(removed.flatten_unordered(None))
        };
        stream::once(offered).flatten().boxed()
    }
}

/// Removes the node of an abandoned cluster, and then deletes the Node object.
async fn removal_events((name, provider): (String, ClusterProvider)) -> BoxStream<'static, NodeEvent> {
    provider.removed().await;
    let rest = async move {
        provider.remove_node().await;
        stream::empty()
    };
    stream::iter([NodeEvent::Removed(name)]).chain(stream::once(rest).flatten()).boxed()
}

/// Resolves when the lower cluster is synced and identified.
async fn wait_until_synced(lower: &LowerCluster) {
    while lower.check_synced().is_err() || lower.identity().refresh(lower.client()).await.is_err() {
        tokio::time::sleep(SYNC_POLL).await;
    }
}

/// Creates a client of the lower cluster without sending a request.
async fn connect(settings: &Settings, upper: &UpperCluster, supervisor: &Supervisor) -> Result<Client> {
    let Some(path) = settings.kubeconfig.clone() else {
        return Err(Error::invalid(
            "kubeconfig: not configured: set --client-kubeconfig FILE, or `kubeconfig` in the configuration of the provider",
        ));
    };
    let source = ClientOptions { kubeconfig: Some(path), server: None };
    source
        .connect(supervisor, upper.client.metrics().clone())
        .await
        .map_err(|error| Error::invalid(format!("connect to the lower cluster: {error}")))
}

/// The id of the upper cluster.
async fn cluster_id(upper: &Client) -> Result<String> {
    vk_kube::cluster_id::cluster_id(upper).await.map_err(|error| {
        let denied = matches!(error.kind, ErrorKind::Forbidden | ErrorKind::Unauthorized);
        let hint = if denied {
            ": set `origin` in the configuration of the provider to a name that no other upper cluster of the lower cluster has"
        } else {
            ""
        };
        let message = format!("read the id of the upper cluster (UID of namespace kube-system): {error}{hint}");
        Error::new(if denied { Kind::Denied } else { Kind::Unavailable }, message)
    })
}
