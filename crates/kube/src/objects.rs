//! Calls on objects of one kind: each with a time limit, a typed error and a count.

use std::{fmt, fmt::Debug, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
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

use crate::{Client, Error, watch_pool::WatchSlot};

/// The name under which we own fields of objects.
pub const FIELD_MANAGER: &str = "virtual-kubelet";

/// No call to the API server waits longer. A server that hangs shows as a time-out, and the controllers go on.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);

/// The objects of one kind, in one namespace or in the cluster.
pub struct Objects<K> {
    client: Client,
    namespace: Option<String>,
    /// Where its watches go, if not each on a connection of its own.
    watch_slot: Option<Arc<WatchSlot>>,
    api: fn(kube::Client, Option<&str>) -> Api<K>,
    kind: PhantomData<fn() -> K>,
}

/// A change to one object. All but `Json` may carry `metadata.uid` and `metadata.resourceVersion` as preconditions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Patch<'a, B = Value> {
    /// Server-side apply of the fields given, by force, as [`FIELD_MANAGER`]: fields that we applied before and that are
    /// not given any more go.
    Apply(&'a B),
    /// Strategic merge: lists merge by their keys.
    Strategic(&'a B),
    /// JSON merge: lists are replaced.
    Merge(&'a B),
    /// A list of JSON patch operations.
    Json(&'a B),
}

/// What the calls need to know of a kind.
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
    /// Objects that have no namespace.
    pub fn cluster(client: Client) -> Self
    where
        K: Resource<Scope = ClusterResourceScope>,
    {
        Self {
            client,
            namespace: None,
            watch_slot: None,
            api: |client, _| Api::all(client),
            kind: PhantomData,
        }
    }

    /// The objects of one namespace.
    pub fn namespaced(client: Client, namespace: impl Into<String>) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let api = |client, namespace: Option<&str>| Api::namespaced(client, namespace.unwrap_or("default"));
        Self { client, namespace: Some(namespace.into()), watch_slot: None, api, kind: PhantomData }
    }

    /// The objects of all namespaces, to be watched.
    pub fn everywhere(client: Client) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        Self {
            client,
            namespace: None,
            watch_slot: None,
            api: |client, _| Api::all(client),
            kind: PhantomData,
        }
    }

    pub(crate) fn api(&self) -> Api<K> {
        (self.api)(self.client.kube(), self.namespace.as_deref())
    }

    pub(crate) fn api_for_watches(&self) -> Api<K> {
        let client = match &self.watch_slot {
            Some(watch_slot) => self.client.kube_on(watch_slot),
            None => self.client.kube_for_watches(),
        };
        (self.api)(client, self.namespace.as_deref())
    }

    /// The same objects, with their watches on a watch_slot. The place is given back with the last clone and watch.
    #[must_use]
    pub fn on(self, watch_slot: WatchSlot) -> Self {
        Self { watch_slot: Some(Arc::new(watch_slot)), ..self }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn call<T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = kube::Result<T>> + Send,
    ) -> Result<T, Error> {
        let result = limited(request).await;
        self.client.metrics().count(verb, &K::plural(&()), &result);
        result
    }

    /// A call that changes something: only while the fence is open. The request carries the fence, so that it is asked once
    /// more when the body goes out: behind a hundred others on the connection, that can be long after it was made.
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
        let result = self.client.write(limited(send)).await;
        self.client.metrics().count(verb, &K::plural(&()), &result);
        result
    }

    fn requests(&self) -> Request {
        Request::new(K::url_path(&(), self.namespace.as_deref()))
    }

    /// Reads an object.
    pub async fn get(&self, name: &str) -> Result<K, Error> {
        let api = self.api();
        self.call("get", api.get(name)).await
    }

    /// Creates an object. [`Kind::AlreadyExists`](crate::Kind::AlreadyExists) when the name is taken.
    pub async fn create(&self, object: &K) -> Result<K, Error> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        self.write("create", self.requests().create(&params, json(object)?)).await
    }

    /// Posts to a subresource, such as `token` of a ServiceAccount, and answers what the server makes of it.
    pub async fn post<B: Serialize + Sync, T: DeserializeOwned>(
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

    /// Changes an object and answers what it is now.
    pub async fn patch<B: Serialize + Debug>(&self, name: &str, patch: Patch<'_, B>) -> Result<K, Error> {
        let (params, body) = patch.for_kube()?;
        self.write("patch", self.requests().patch(name, &params, &body)).await
    }

    /// Changes an object's status and answers what the object is now.
    pub async fn patch_status<B: Serialize + Debug>(
        &self,
        name: &str,
        patch: Patch<'_, B>,
    ) -> Result<K, Error> {
        let (params, body) = patch.for_kube()?;
        self.write("patch_status", self.requests().patch_subresource("status", name, &params, &body)).await
    }

    /// Changes a part of an object that has an address of its own, such as `resize` of a pod, and answers what the object is now.
    pub async fn patch_part<B: Serialize + Debug>(
        &self,
        name: &str,
        part: &'static str,
        patch: Patch<'_, B>,
    ) -> Result<K, Error> {
        let (params, body) = patch.for_kube()?;
        self.write("patch", self.requests().patch_subresource(part, name, &params, &body)).await
    }

    /// Deletes the object with this name and this UID. A namesake with another UID is a
    /// [`Kind::Conflict`](crate::Kind::Conflict).
    pub async fn delete(&self, name: &str, uid: &str) -> Result<(), Error> {
        self.delete_with(name, uid, None).await
    }

    /// The same without any grace: for a pod of which nothing runs any more.
    pub async fn delete_now(&self, name: &str, uid: &str) -> Result<(), Error> {
        self.delete_with(name, uid, Some(0)).await
    }

    /// The same with a grace, in whole seconds: for a pod that somebody else stops.
    pub async fn delete_within(&self, name: &str, uid: &str, grace: Duration) -> Result<(), Error> {
        let seconds = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        self.delete_with(name, uid, Some(seconds)).await
    }

    async fn delete_with(
        &self,
        name: &str,
        uid: &str,
        grace_period_seconds: Option<u32>,
    ) -> Result<(), Error> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        // Answered with the object, or with a status.
        self.write::<IgnoredAny>("delete", self.requests().delete(name, &params)).await.map(drop)
    }
}

fn json(body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body)
        .map_err(|error| Error::new(crate::Kind::Invalid, format!("cannot be written as JSON: {error}")))
}

/// A request with the time limit of all calls.
pub(crate) async fn limited<T>(request: impl Future<Output = kube::Result<T>> + Send) -> Result<T, Error> {
    match tokio::time::timeout(CALL_LIMIT, Box::pin(request)).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Error::timeout(CALL_LIMIT)),
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
