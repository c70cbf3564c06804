//! A lower cluster whose watches show one thing and whose API server, when it is asked, another: what a watch that fell silent looks like.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream, stream::BoxStream};
use http::Method;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Secret, Service},
    node::v1::RuntimeClass,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use vk_kube::UpperCluster;
use vk_provider::{
    Error, PodBundle, PodChange, PodRef, Provider as _, Resolver, Result,
    resolve::{
        Claim, ContainerInputs, Facts, FileSet, NodeFacts, PullCredentials, Reference, Token, TokenLifetime,
        TokenRequest,
    },
};
use vk_provider_cluster::{
    config::Settings,
    copies::UpperWatches,
    lower_cluster::{LowerCluster, LowerClusterOptions},
    names::{NODE, NamespaceMapping, ORIGIN, ORIGIN_NAME, ORIGIN_NAMESPACE, ORIGIN_UID, OwnerId},
    owner_config_map,
    provider::{ClusterProvider, ClusterProviderOptions},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::eventually;

use crate::fake_api_server::{
    DEADLINE, FakeApiServer, RecordedRequest, ScriptedAnswer, json as answer, status,
};

/// Stands for the pods of others in [`ScriptedCluster::watched`].
pub(crate) const FOREIGN_PODS: &str = "foreign pods";

/// What the API server answers.
#[derive(Default)]
pub(crate) struct ScriptedCluster {
    /// The objects that watches list at their begin, by resource. After that they are silent for ever.
    pub(crate) watched: BTreeMap<&'static str, Vec<Value>>,
    /// The objects that the API server has, by path.
    pub(crate) live: BTreeMap<String, Value>,
    /// What objects are after a patch, by path; others stay as they are.
    pub(crate) patched: BTreeMap<String, Value>,
    /// The resources that may not be listed.
    pub(crate) forbidden: BTreeSet<&'static str>,
}

/// A virtual node of a scripted cluster. Both clusters have the same API server.
pub(crate) struct ScriptedNode {
    pub(crate) server: FakeApiServer,
    pub(crate) cluster: Arc<Mutex<ScriptedCluster>>,
    pub(crate) upper: UpperCluster,
    pub(crate) provider: ClusterProvider,
    supervisor: Supervisor,
}

pub(crate) fn owner() -> OwnerId {
    OwnerId { origin: "upper".to_owned(), node: "vk".to_owned() }
}

/// The upper pod `web/a` in this phase.
pub(crate) fn upper_pod(phase: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "web", "name": "a", "uid": "u1", "resourceVersion": "1"},
        "spec": {"nodeName": "vk", "containers": [{"name": "main", "image": "i"}], "automountServiceAccountToken": false},
        "status": {"phase": phase}})
}

/// The lower pod of [`upper_pod`], with this state of its container.
pub(crate) fn lower_pod(phase: &str, state: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "web", "name": "a", "uid": "l1", "resourceVersion": "7",
            "labels": {ORIGIN: "upper", NODE: "vk", ORIGIN_UID: "u1"},
            "annotations": {ORIGIN_NAMESPACE: "web", ORIGIN_NAME: "a"}},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": phase, "containerStatuses": [
            {"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state}]}})
}

pub(crate) fn reference() -> PodRef {
    PodRef::new("web", "a", "u1")
}

pub(crate) fn bundle(pod: Value) -> PodBundle {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    PodBundle { pod: Arc::new(pod), resolver: Arc::new(Unused) }
}

// === impl ScriptedNode ===

impl ScriptedNode {
    /// Starts the virtual node and waits until its watches have listed.
    pub(crate) async fn start(cluster: ScriptedCluster) -> Self {
        Self::start_with(cluster, Settings::default()).await
    }

    /// Starts a virtual node with these settings.
    pub(crate) async fn start_with(mut cluster: ScriptedCluster, settings: Settings) -> Self {
        let owner_map = json!({"metadata": {"namespace": "web", "name": owner_config_map::name(&owner()), "uid": "o1",
            "labels": {ORIGIN: "upper", NODE: "vk"}}});
        let path = format!("/api/v1/namespaces/web/configmaps/{}", owner_config_map::name(&owner()));
        cluster.live.entry(path).or_insert(owner_map);
        cluster
            .live
            .entry("/api/v1/namespaces/web".to_owned())
            .or_insert_with(|| json!({"metadata": {"name": "web"}}));
        cluster.live.entry("/api/v1/namespaces/web/configmaps".to_owned()).or_insert_with(|| {
            json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "9"}, "items": []})
        });
        let system = json!({"metadata": {"name": "kube-system", "uid": "lower-id"}});
        cluster.live.insert("/api/v1/namespaces/kube-system".to_owned(), system);
        cluster.live.insert("/version".to_owned(), json!({"gitVersion": "v1.36.4"}));
        let cluster = Arc::new(Mutex::new(cluster));
        let script = Arc::clone(&cluster);
        let server = FakeApiServer::start(move |request| script.lock().answer(request)).await;
        let (client, supervisor) = (server.client.clone(), Supervisor::new());
        let upper = UpperCluster::new(client.clone(), move |_| client.clone());
        let lower = LowerCluster::start(LowerClusterOptions {
            client: server.client.clone(),
            origin: owner().origin,
            cluster: None,
            namespaces: NamespaceMapping::Same,
            autoscales: settings.autoscales,
            supervisor: supervisor.clone(),
        });
        let provider = ClusterProvider::new(ClusterProviderOptions {
            upper: upper.clone(),
            upper_watches: Arc::new(UpperWatches::new(&server.client, &supervisor)),
            lower: lower.clone(),
            owner: owner(),
            settings,
            clock: Clock::system(),
            supervisor: supervisor.clone(),
        });
        eventually("the watches have listed", DEADLINE, || async {
            lower.check_synced().map_err(|error| error.report())
        })
        .await;
        Self { server, cluster, upper, provider, supervisor }
    }

    /// Begins to run the node.
    pub(crate) fn lead(&self) -> BoxStream<'static, PodChange> {
        let vk_provider::Changes::Push(changes) = self.provider.changes() else { panic!("it pushes") };
        changes
    }

    /// The methods and paths of the requests that change something, without questions about permissions.
    pub(crate) fn writes(&self) -> Vec<(Method, String)> {
        let asked = self.server.asked().into_iter();
        asked
            .filter(|request| request.method != Method::GET && !request.path.contains("authorization.k8s.io"))
            .map(|request| (request.method, request.path))
            .collect()
    }

    /// The phase and reason that the provider reports for the pod when it lists all pods.
    pub(crate) async fn listed(&self) -> Option<(String, String)> {
        let all = self.provider.pods().await.unwrap();
        let found = all.into_iter().find(|one| one.pod == reference())?;
        Some((found.status.phase.unwrap_or_default(), found.status.reason.unwrap_or_default()))
    }
}

impl Drop for ScriptedNode {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

// === impl ScriptedCluster ===

impl ScriptedCluster {
    pub(crate) fn answer(&self, request: &RecordedRequest) -> ScriptedAnswer {
        let path = request.path.as_str();
        if path.contains("selfsubjectaccessreviews") {
            let review: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let resource = review["spec"]["resourceAttributes"]["resource"].as_str().unwrap_or_default();
            return answer(
                &json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                "spec": {}, "status": {"allowed": !self.forbidden.contains(resource)}}),
            );
        }
        if request.query.contains("watch=true") {
            return self.watch(request);
        }
        if path == "/readyz" {
            return ScriptedAnswer::Text(200, "ok".to_owned());
        }
        // The account of pods is there already.
        if path.contains("/serviceaccounts") && !self.live.contains_key(path) {
            return match request.method {
                Method::POST => status(409, "AlreadyExists", "already exists"),
                _ => answer(&json!({"apiVersion": "v1", "kind": "ServiceAccount",
                    "metadata": {"namespace": "web", "name": "account", "uid": "s1", "resourceVersion": "5"}})),
            };
        }
        if request.method == Method::POST {
            let kind = if path.ends_with("/pods") { "Pod" } else { "ConfigMap" };
            return answer(
                &json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "made", "uid": "m1"}}),
            );
        }
        let patched = self.patched.get(path).filter(|_| request.method == Method::PATCH);
        match patched.or_else(|| self.live.get(path)) {
            Some(object) if object["items"].is_array() => answer(&selected(object, &request.query)),
            Some(object) => answer(object),
            // A list of nodes by name.
            None if path == "/api/v1/nodes" => {
                let items: Vec<&Value> = self
                    .live
                    .iter()
                    .filter(|(path, _)| path.starts_with("/api/v1/nodes/"))
                    .map(|(_, node)| node)
                    .collect();
                answer(
                    &json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "9"}, "items": items}),
                )
            }
            None => status(404, "NotFound", "not found"),
        }
    }

    /// As [`Self::answer`], but ConfigMaps are created, patched and deleted, and the list of their namespace shows it.
    pub(crate) fn answer_and_store(&mut self, request: &RecordedRequest) -> ScriptedAnswer {
        let Some((namespace, _)) = request.path.split_once("/configmaps") else {
            return self.answer(request);
        };
        let list = format!("{namespace}/configmaps");
        let mut body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let written = match request.method {
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                body["metadata"]["uid"] = json!(format!("made-{name}"));
                self.live.insert(format!("{list}/{name}"), body.clone());
                Some(body)
            }
            Method::PATCH => self.live.get_mut(&request.path).map(|object| {
                merge(object, &body);
                object.clone()
            }),
            Method::DELETE => self.live.remove(&request.path),
            _ => return self.answer(request),
        };
        let items = self.live.iter().filter(|(path, _)| path.starts_with(&format!("{list}/")));
        let items: Vec<Value> = items.map(|(_, object)| object.clone()).collect();
        self.live.insert(
            list,
            json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "9"}, "items": items}),
        );
        written.map_or_else(|| status(404, "NotFound", "not found"), |object| answer(&object))
    }

    /// A streamed list, and then nothing.
    fn watch(&self, request: &RecordedRequest) -> ScriptedAnswer {
        let resource = request.path.rsplit('/').next().unwrap_or_default();
        // Pods of others have a selector of their own.
        let resource = if request.query.contains("%21%3D") { FOREIGN_PODS } else { resource };
        let objects = self.watched.get(resource).into_iter().flatten();
        let added = objects.map(|object| json!({"type": "ADDED", "object": object}));
        let end = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {
            "resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": "true"}}}});
        let lines: Vec<_> = added.chain([end]).map(|line| Ok(Bytes::from(format!("{line}\n")))).collect();
        ScriptedAnswer::Stream(stream::iter(lines).chain(stream::pending()).boxed())
    }
}

/// Applies a JSON merge patch.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return into.clone_from(patch) };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}

/// The part of a list that a label selector of the request selects, as far as we use them.
fn selected(list: &Value, query: &str) -> Value {
    let mut query = form_urlencoded::parse(query.as_bytes());
    let Some((_, selector)) = query.find(|(name, _)| name == "labelSelector") else { return list.clone() };
    let mut list = list.clone();
    if let Some(items) = list["items"].as_array_mut() {
        items.retain(|item| {
            let label = |key: &str| item["metadata"]["labels"].get(key).and_then(Value::as_str);
            selector.split(',').all(|term| match term.split_once('=') {
                Some((key, value)) => label(key) == Some(value),
                None => label(term).is_some(),
            })
        });
    }
    list
}

/// A resolver that nobody asks: the provider copies objects itself.
struct Unused;

fn unused<T>() -> Result<T> {
    Err(Error::unsupported("the provider resolves nothing"))
}

#[async_trait]
impl Resolver for Unused {
    async fn container(&self, _name: &str, _facts: &Facts) -> Result<ContainerInputs> {
        unused()
    }

    fn volume(&self, _name: &str, _tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        stream::empty().boxed()
    }

    async fn config_map(&self, _name: &str) -> Result<Arc<ConfigMap>> {
        unused()
    }

    async fn secret(&self, _name: &str) -> Result<Arc<Secret>> {
        unused()
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        unused()
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        unused()
    }

    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        unused()
    }

    async fn claim(&self, _name: &str) -> Result<Claim> {
        unused()
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        unused()
    }

    fn node(&self) -> NodeFacts {
        NodeFacts::default()
    }

    async fn appeared(&self, _reference: &Reference) {
        std::future::pending::<()>().await;
    }
}

/// Some time that is over.
pub(crate) const LONG_AGO: &str = "2026-01-01T00:00:00Z";
/// The grace period of deletions.
pub(crate) const GRACE: Duration = Duration::from_secs(30);
