//! The resolver of one pod.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, future, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Secret, Service},
    node::v1::RuntimeClass,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::debug;
use vk_provider::{
    Error, PodEvent, PodRef, Resolver, Result,
    error::Kind,
    resolve::{
        Claim, ContainerInputs, Facts, FileSet, NodeFacts, PullCredentials, Reference, ReferenceKind, Token,
        TokenLifetime, TokenRequest,
    },
};

use super::{
    ResolverFactory, env, events,
    fetched_objects::{FetchedObjects, RequiredObjects, Requirement, TokenKey, TrustBundleKey},
    object_cache::{CachedObject, Entry, ObjectCache},
    references::References,
    registry,
    tokens::{self, Tokens},
    trust_bundle, volume_claim, volume_stream,
};

/// Delay before a retry for objects that cannot be watched.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Resolves what one pod refers to. Clones are for the same pod.
#[derive(Clone)]
pub struct PodResolver(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) factory: ResolverFactory,
    pub(super) reference: PodRef,
    /// The current pod; `None` after it is gone.
    pub(super) pod: watch::Sender<Option<Arc<Pod>>>,
    pub(super) tokens: Tokens,
    /// Objects that the containers needed. They are kept current until the pod is gone, so containers can restart any time.
    held: Mutex<HeldObjects>,
    /// Reason and message of events that were published.
    published: Mutex<HashSet<(String, String)>>,
}

/// Handles of objects that are kept current.
#[derive(Clone, Default)]
pub(super) struct HeldObjects {
    pub(super) config_maps: BTreeMap<String, Arc<Entry<ConfigMap>>>,
    pub(super) secrets: BTreeMap<String, Arc<Entry<Secret>>>,
    runtime_class: Option<Arc<Entry<RuntimeClass>>>,
}

// === impl PodResolver ===

impl PodResolver {
    pub(super) fn new(factory: ResolverFactory, pod: &Arc<Pod>) -> Self {
        Self(Arc::new(Inner {
            factory,
            reference: PodRef::of(pod).unwrap_or_else(|| PodRef::new("", "", "")),
            pod: watch::Sender::new(Some(Arc::clone(pod))),
            tokens: Tokens::default(),
            held: Mutex::default(),
            published: Mutex::default(),
        }))
    }

    /// Updates the pod. Files made from its labels and annotations follow.
    pub fn update(&self, pod: &Arc<Pod>) {
        self.0.pod.send_if_modified(|known| {
            let Some(known) = known else { return false };
            let (old, new) = (&known.metadata, &pod.metadata);
            let same = old.generation == new.generation
                && old.labels == new.labels
                && old.annotations == new.annotations
                && new.generation.is_some();
            *known = Arc::clone(pod);
            !same
        });
    }

    /// Ends the streams of a pod that is gone, stops reading on its behalf, and fails further requests with `NotFound`.
    pub fn close(&self) {
        self.0.pod.send_replace(None);
        *self.0.held.lock() = HeldObjects::default();
        self.0.tokens.clear();
    }
}

impl Inner {
    pub(super) fn pod(&self) -> Result<Arc<Pod>> {
        let gone = || Error::not_found(format!("pod {} is gone", self.reference));
        self.pod.borrow().clone().ok_or_else(gone)
    }

    pub(super) fn namespace(&self) -> &str {
        &self.reference.namespace
    }

    /// Keeps objects current until the pod is gone.
    fn keep_current(&self, change: impl FnOnce(&mut HeldObjects)) {
        let pod = self.pod.borrow();
        if pod.is_some() {
            change(&mut self.held.lock());
        }
    }

    /// Publishes an event unless it was published before.
    pub(super) fn publish_once(&self, event: PodEvent) {
        if self.published.lock().insert((event.reason.clone(), event.message.clone())) {
            self.factory.publish(event);
        }
    }

    /// Allows events with these reasons about this object to be published again.
    pub(super) fn forget_published(&self, reasons: &[&str], about: &str) {
        self.published
            .lock()
            .retain(|(reason, message)| !(reasons.contains(&reason.as_str()) && message.contains(about)));
    }

    pub(super) fn hold(&self, required: &RequiredObjects) -> HeldObjects {
        let (namespace, factory) = (self.namespace(), &self.factory.0);
        HeldObjects {
            config_maps: hold_all(&factory.config_maps, namespace, &required.config_maps),
            secrets: hold_all(&factory.secrets, namespace, &required.secrets),
            runtime_class: None,
        }
    }

    /// Fetches everything except tokens.
    pub(super) async fn fetch(
        &self,
        required: &RequiredObjects,
        holds: &HeldObjects,
    ) -> Result<FetchedObjects> {
        let (config_maps, secrets) = future::try_join(read(&holds.config_maps), read(&holds.secrets)).await?;
        let mut services = Vec::new();
        let services_cache = &self.factory.0.services;
        if required.services {
            services.extend(services_cache.in_namespace(self.namespace()).await?);
        }
        if required.kubernetes_service && !(required.services && self.namespace() == "default") {
            services.extend(services_cache.get("default", "kubernetes").await?);
        }
        let mut trust_bundles = BTreeMap::new();
        for key in required.trust_bundles.keys() {
            trust_bundles
                .insert(TrustBundleKey::clone(key), trust_bundle::read(self.factory.client(), key).await?);
        }
        Ok(FetchedObjects { config_maps, secrets, services, trust_bundles, tokens: BTreeMap::new() })
    }

    async fn environment(&self, name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let pod = self.pod()?;
        let required = env::required_objects(&pod, name)?;
        let holds = self.hold(&required);
        let objects = self.fetch(&required, &holds).await?;
        self.keep_current(|held| {
            held.config_maps.extend(holds.config_maps);
            held.secrets.extend(holds.secrets);
        });
        let node = self.factory.node();
        let mut facts = facts.clone();
        if facts.host_ips.is_empty() {
            facts.host_ips.clone_from(&node.ips);
        }
        let (inputs, warnings) = env::container(&pod, name, &facts, &node, &objects)?;
        for warning in &warnings {
            self.publish_once(events::for_warning(&self.reference, Some(name), warning));
        }
        Ok(inputs)
    }

    /// Fails unless the pod references the object. Nothing else is read, even if our permissions allow it.
    fn check_referenced(&self, kind: ReferenceKind, name: &str) -> Result<()> {
        let all = References::of(&*self.pod()?);
        let names = match kind {
            ReferenceKind::ConfigMap => &all.config_maps,
            ReferenceKind::Secret => &all.secrets,
            _ => &all.claims,
        };
        if names.contains(name) {
            return Ok(());
        }
        let reference = Reference::new(kind, self.namespace(), name);
        Err(Error::new(Kind::Denied, format!("pod {} does not refer to {reference}", self.reference)))
    }

    async fn read_required<K: CachedObject>(&self, entry: &Entry<K>, name: &str) -> Result<Arc<K>> {
        let found = entry.read().await?;
        found.ok_or_else(|| {
            let reference = Reference::new(K::KIND, self.namespace(), name);
            let kind = format!("{:?}", K::KIND).to_lowercase();
            Error::new(Kind::Unresolved(reference), format!("{kind} {name:?} not found"))
        })
    }
}

fn hold_all<K: CachedObject>(
    cache: &ObjectCache<K>,
    namespace: &str,
    names: &BTreeMap<String, Requirement>,
) -> BTreeMap<String, Arc<Entry<K>>> {
    names.keys().map(|name| (name.clone(), cache.hold(namespace, name))).collect()
}

async fn read<K: CachedObject>(
    entries: &BTreeMap<String, Arc<Entry<K>>>,
) -> Result<BTreeMap<String, Option<Arc<K>>>> {
    let reads = entries.iter().map(|(name, entry)| async move { Ok((name.clone(), entry.read().await?)) });
    future::try_join_all(reads).await.map(|found| found.into_iter().collect())
}

#[async_trait]
impl Resolver for PodResolver {
    async fn container(&self, name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let inputs = self.0.environment(name, facts).await;
        match &inputs {
            Err(error) if *error.kind() == Kind::NotFound => debug!(error = error.report(), "no environment"),
            Err(error) => {
                for event in events::container_failed(&self.0.reference, name, error) {
                    self.0.publish_once(event);
                }
            }
            Ok(_) => {}
        }
        inputs
    }

    fn volume(&self, name: &str, tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        volume_stream::follow(Arc::clone(&self.0), name, tokens).boxed()
    }

    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>> {
        self.0.check_referenced(ReferenceKind::ConfigMap, name)?;
        let entry = self.0.factory.0.config_maps.hold(self.0.namespace(), name);
        self.0.keep_current(|held| drop(held.config_maps.insert(name.to_owned(), Arc::clone(&entry))));
        self.0.read_required(&entry, name).await
    }

    async fn secret(&self, name: &str) -> Result<Arc<Secret>> {
        self.0.check_referenced(ReferenceKind::Secret, name)?;
        let entry = self.0.factory.0.secrets.hold(self.0.namespace(), name);
        self.0.keep_current(|held| drop(held.secrets.insert(name.to_owned(), Arc::clone(&entry))));
        self.0.read_required(&entry, name).await
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        self.0.pod()?;
        self.0.factory.0.services.in_namespace(self.0.namespace()).await
    }

    async fn token(&self, request: &TokenRequest) -> Result<Token> {
        let key = TokenKey {
            audience: request.audience.clone(),
            expiration_seconds: request
                .lifetime
                .map(|lifetime| i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX)),
        };
        tokens::request(self.0.factory.client(), &*self.0.pod()?, &key).await
    }

    async fn pull_credentials(&self, image: &str) -> Result<Vec<PullCredentials>> {
        let pod = self.0.pod()?;
        let names = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        let (mut secrets, mut missing) = (Vec::new(), Vec::new());
        for name in names.map(|secret| &secret.name).filter(|name| !name.is_empty()) {
            match self.secret(name).await {
                Ok(secret) => secrets.push(secret),
                Err(error) if matches!(error.kind(), Kind::Unresolved(_)) => missing.push(name.clone()),
                Err(error) => return Err(error),
            }
        }
        if !missing.is_empty() {
            self.0.publish_once(events::pull_secrets_missing(&self.0.reference, &missing));
        }
        registry::credentials(image, &secrets)
    }

    async fn claim(&self, name: &str) -> Result<Claim> {
        self.0.check_referenced(ReferenceKind::PersistentVolumeClaim, name)?;
        volume_claim::read(self.0.factory.client(), self.0.namespace(), name).await
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        let pod = self.0.pod()?;
        let name = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
        let entry = self.0.factory.0.runtime_classes.hold("", name);
        self.0.keep_current(|held| held.runtime_class = Some(Arc::clone(&entry)));
        let found = entry.read().await?;
        found.map(Some).ok_or_else(|| {
            let reference = Reference::new(ReferenceKind::RuntimeClass, "", name);
            Error::new(Kind::Unresolved(reference), format!("RuntimeClass {name:?} not found"))
        })
    }

    fn node(&self) -> NodeFacts {
        self.0.factory.node()
    }

    async fn appeared(&self, reference: &Reference) {
        let (factory, namespace) = (&self.0.factory.0, self.0.namespace());
        let referenced = self.0.check_referenced(reference.kind, &reference.name).is_ok();
        match reference.kind {
            ReferenceKind::ConfigMap if referenced => {
                let has = |map: &ConfigMap, key: &str| {
                    map.data.as_ref().is_some_and(|data| data.contains_key(key))
                        || map.binary_data.as_ref().is_some_and(|data| data.contains_key(key))
                };
                let fits = |map: &ConfigMap| reference.key.as_deref().is_none_or(|key| has(map, key));
                factory.config_maps.hold(namespace, &reference.name).appeared(fits).await;
            }
            ReferenceKind::Secret if referenced => {
                let has = |secret: &Secret, key: &str| {
                    secret.data.as_ref().is_some_and(|data| data.contains_key(key))
                };
                let fits = |secret: &Secret| reference.key.as_deref().is_none_or(|key| has(secret, key));
                factory.secrets.hold(namespace, &reference.name).appeared(fits).await;
            }
            ReferenceKind::RuntimeClass => {
                factory.runtime_classes.hold("", &reference.name).appeared(|_| true).await;
            }
            _ => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
}
