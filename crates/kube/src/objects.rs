//! Typed calls on objects of one kind, each with a time limit, a classified error and a metric.

use std::{fmt, fmt::Debug, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch as KubePatch, PatchParams, PostParams, Preconditions},
    core::{Request, request},
};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;
use tracing::warn;

use crate::{Client, Error, watch_pool::WatchSlot};

/// Our field manager.
pub const FIELD_MANAGER: &str = "virtual-kubelet";

/// The time limit of a call. A server that hangs shows as a timeout, and the controllers go on.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The objects of one kind, in one namespace or in all.
pub struct Objects<K> {
    client: Client,
    namespace: Option<String>,
    /// The pool slot for watches. Without it each watch has its own connection.
    watch_slot: Option<Arc<WatchSlot>>,
    api: fn(kube::Client, Option<&str>) -> Api<K>,
    kind: PhantomData<fn() -> K>,
}

/// A patch. All but `Json` may carry `metadata.uid` and `metadata.resourceVersion` as preconditions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Patch<'a, B = Value> {
    /// Forced server-side apply as [`FIELD_MANAGER`]: fields that we applied before and that are missing now are removed.
    Apply(&'a B),
    /// Strategic merge patch: lists merge by their keys.
    Strategic(&'a B),
    /// JSON merge patch: lists are replaced.
    Merge(&'a B),
    /// JSON patch: a list of operations.
    Json(&'a B),
}

/// The bounds on a kind.
pub trait Object:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static
{
}

// === impl Objects ===

impl<K: Object> Objects<K> {
    /// All objects of a kind: cluster-scoped ones, or those of all namespaces.
    pub fn all(client: Client) -> Self {
        let api = |client, _: Option<&str>| Api::all(client);
        Self { client, namespace: None, watch_slot: None, api, kind: PhantomData }
    }

    /// The objects of one namespace.
    pub fn namespaced(client: Client, namespace: impl Into<String>) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let api = |client, namespace: Option<&str>| Api::namespaced(client, namespace.unwrap_or("default"));
        Self { client, namespace: Some(namespace.into()), watch_slot: None, api, kind: PhantomData }
    }

    pub(crate) fn api(&self) -> Api<K> {
        (self.api)(self.client.kube(), self.namespace.as_deref())
    }

    pub(crate) fn api_for_watches(&self) -> Api<K> {
        let client = match &self.watch_slot {
            Some(watch_slot) => self.client.kube_on_slot(watch_slot),
            None => self.client.kube_for_watches(),
        };
        (self.api)(client, self.namespace.as_deref())
    }

    /// Uses this slot of the pool for watches. It is released with the last clone and watch.
    #[must_use]
    pub fn on_slot(self, watch_slot: WatchSlot) -> Self {
        Self { watch_slot: Some(Arc::new(watch_slot)), ..self }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The client that sends the calls.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn call<T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = kube::Result<T>> + Send,
    ) -> Result<T, Error> {
        let result = with_timeout(request).await;
        self.client.metrics().count(verb, &K::plural(&()), &result);
        result
    }

    /// Sends a request that changes something, while the fence is open. The request carries the fence, so that it is checked again
    /// when the body is sent: in the queue of a connection, that can be long after the request was built.
    async fn write<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<T, Error> {
        let client = self.client.kube();
        let send = async {
            let mut request = request.map_err(kube::Error::BuildRequest)?;
            if let Some(fence) = self.client.fence() {
                request.extensions_mut().insert(fence.clone());
            }
            client.request(request).await
        };
        let result = self.client.write(with_timeout(send)).await;
        self.client.metrics().count(verb, &K::plural(&()), &result);
        result
    }

    fn requests(&self) -> Request {
        Request::new(K::url_path(&(), self.namespace.as_deref()))
    }

    /// Gets an object.
    pub async fn get(&self, name: &str) -> Result<K, Error> {
        let api = self.api();
        self.call("get", api.get(name)).await
    }

    /// Creates an object. Fails with [`Kind::AlreadyExists`](crate::Kind::AlreadyExists) if the name is taken.
    pub async fn create(&self, object: &K) -> Result<K, Error> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        self.write("create", self.requests().create(&params, json(object)?)).await
    }

    /// Creates an object from JSON that a state machine generated.
    pub async fn create_value(&self, body: &Value) -> Result<K, Error> {
        let object = K::deserialize(body).map_err(|error| {
            warn!(%error, "generated request body does not match its kind");
            Error::new(crate::Kind::Invalid, error.to_string())
        })?;
        self.create(&object).await
    }

    /// Creates a subresource, such as `token` of a ServiceAccount, and returns the server's answer.
    pub async fn create_subresource<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &'static str,
        body: &B,
    ) -> Result<T, Error> {
        let body = json(body)?;
        self.write(
            "post",
            self.requests().create_subresource(subresource, name, &PostParams::default(), body),
        )
        .await
    }

    /// Patches an object and returns the result.
    pub async fn patch<B: Serialize + Debug>(&self, name: &str, patch: Patch<'_, B>) -> Result<K, Error> {
        let (params, body) = patch.for_kube()?;
        self.write("patch", self.requests().patch(name, &params, &body)).await
    }

    /// Patches the status of an object and returns the object.
    pub async fn patch_status<B: Serialize + Debug>(
        &self,
        name: &str,
        patch: Patch<'_, B>,
    ) -> Result<K, Error> {
        let (params, body) = patch.for_kube()?;
        self.write("patch_status", self.requests().patch_subresource("status", name, &params, &body)).await
    }

    /// Patches a subresource, such as `resize` of a pod, and returns the object.
    pub async fn patch_subresource<B: Serialize + Debug>(
        &self,
        name: &str,
        subresource: &'static str,
        patch: Patch<'_, B>,
    ) -> Result<K, Error> {
        let (params, body) = patch.for_kube()?;
        self.write("patch", self.requests().patch_subresource(subresource, name, &params, &body)).await
    }

    /// Deletes the object with this name and UID. If another object has the name, this fails with
    /// [`Kind::Conflict`](crate::Kind::Conflict).
    pub async fn delete(&self, name: &str, uid: &str) -> Result<(), Error> {
        self.delete_with(name, uid, None, None).await
    }

    /// Deletes this version of the object with this name and UID. If it was changed since, or another object has the name, this fails with
    /// [`Kind::Conflict`](crate::Kind::Conflict).
    pub async fn delete_version(&self, name: &str, uid: &str, version: &str) -> Result<(), Error> {
        self.delete_with(name, uid, Some(version.to_owned()), None).await
    }

    /// Deletes with a grace period in whole seconds. Zero removes a pod at once: use it only when nothing of the pod runs.
    pub async fn delete_with_grace(&self, name: &str, uid: &str, grace: Duration) -> Result<(), Error> {
        let seconds = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        self.delete_with(name, uid, None, Some(seconds)).await
    }

    async fn delete_with(
        &self,
        name: &str,
        uid: &str,
        resource_version: Option<String>,
        grace_period_seconds: Option<u32>,
    ) -> Result<(), Error> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version };
        let params = DeleteParams {
            grace_period_seconds,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        // The server answers with the object or with a Status.
        self.write::<IgnoredAny>("delete", self.requests().delete(name, &params)).await.map(drop)
    }
}

fn json(body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body)
        .map_err(|error| Error::new(crate::Kind::Invalid, format!("cannot serialize the object: {error}")))
}

/// Runs a request with the time limit of calls.
pub(crate) async fn with_timeout<T>(
    request: impl Future<Output = kube::Result<T>> + Send,
) -> Result<T, Error> {
    match tokio::time::timeout(CALL_TIMEOUT, Box::pin(request)).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Error::timeout(CALL_TIMEOUT)),
    }
}

impl<K> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            watch_slot: self.watch_slot.clone(),
            api: self.api,
            kind: PhantomData,
        }
    }
}

impl<K> fmt::Debug for Objects<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

// === impl Patch ===

impl<'a, B: Serialize + Debug> Patch<'a, B> {
    fn for_kube(self) -> Result<(PatchParams, KubePatch<&'a B>), Error> {
        let plain = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        Ok(match self {
            Self::Apply(body) => (PatchParams::apply(FIELD_MANAGER).force(), KubePatch::Apply(body)),
            Self::Strategic(body) => (plain, KubePatch::Strategic(body)),
            Self::Merge(body) => (plain, KubePatch::Merge(body)),
            Self::Json(body) => {
                let operations = serde_json::to_value(body)
                    .and_then(serde_json::from_value)
                    .map_err(|error| Error::new(crate::Kind::Invalid, format!("JSON patch: {error}")))?;
                (plain, KubePatch::Json(operations))
            }
        })
    }
}
