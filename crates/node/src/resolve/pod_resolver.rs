//! Answers what one pod refers to.

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
        TokenRequest,
    },
};

use super::{
    ResolverFactory, env, notes,
    object_cache::{Entry, ObjectCache, Shelved},
    objects::{Need, Needs, Objects, TokenKey, TrustKey},
    references::References,
    registry, storage,
    tokens::{self, Tokens},
    trust, volume,
};

/// How long to wait before asking again for what cannot be watched.
const AGAIN: Duration = Duration::from_secs(5);

/// Answers what one pod refers to. Clones answer for the same pod.
#[derive(Clone)]
pub struct PodResolver(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) library: ResolverFactory,
    pub(super) reference: PodRef,
    /// The pod as it is now; `None` when it is gone.
    pub(super) pod: watch::Sender<Option<Arc<Pod>>>,
    pub(super) tokens: Tokens,
    /// What the pod's containers needed: kept current until the pod goes, so that they can start again at any time.
    held: Mutex<Holds>,
    /// What people have heard.
    told: Mutex<HashSet<(String, String)>>,
}

/// Objects that are kept current.
#[derive(Clone, Default)]
pub(super) struct Holds {
    pub(super) config_maps: BTreeMap<String, Arc<Entry<ConfigMap>>>,
    pub(super) secrets: BTreeMap<String, Arc<Entry<Secret>>>,
    runtime_class: Option<Arc<Entry<RuntimeClass>>>,
}

// === impl PodResolver ===

impl PodResolver {
    pub(super) fn new(library: ResolverFactory, pod: &Arc<Pod>) -> Self {
        Self(Arc::new(Inner {
            library,
            reference: PodRef::of(pod).unwrap_or_else(|| PodRef::new("", "", "")),
            pod: watch::Sender::new(Some(Arc::clone(pod))),
            tokens: Tokens::default(),
            held: Mutex::default(),
            told: Mutex::default(),
        }))
    }

    /// The pod is like this now. Files that are made of its labels and annotations follow.
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

    /// The pod is gone: streams end, nothing is read on its behalf any more, and questions are answered with `NotFound`.
    pub fn close(&self) {
        self.0.pod.send_replace(None);
        *self.0.held.lock() = Holds::default();
        self.0.tokens.clear();
    }
}

impl Inner {
    pub(super) fn pod(&self) -> Result<Arc<Pod>> {
        let gone = || Error::not_found(format!("pod {} is not there any more", self.reference));
        self.pod.borrow().clone().ok_or_else(gone)
    }

    pub(super) fn namespace(&self) -> &str {
        &self.reference.namespace
    }

    /// What was asked for stays current until the pod goes.
    fn keep(&self, change: impl FnOnce(&mut Holds)) {
        let pod = self.pod.borrow();
        if pod.is_some() {
            change(&mut self.held.lock());
        }
    }

    /// Tells people, once.
    pub(super) fn tell(&self, event: PodEvent) {
        if self.told.lock().insert((event.reason.clone(), event.message.clone())) {
            self.library.note(event);
        }
    }

    /// What was told about this may be told again.
    pub(super) fn untell(&self, reasons: &[&str], about: &str) {
        self.told
            .lock()
            .retain(|(reason, message)| !(reasons.contains(&reason.as_str()) && message.contains(about)));
    }

    pub(super) fn hold(&self, needs: &Needs) -> Holds {
        let (namespace, library) = (self.namespace(), &self.library.0);
        Holds {
            config_maps: held(&library.config_maps, namespace, &needs.config_maps),
            secrets: held(&library.secrets, namespace, &needs.secrets),
            runtime_class: None,
        }
    }

    /// All but the tokens.
    pub(super) async fn gather(&self, needs: &Needs, holds: &Holds) -> Result<Objects> {
        let (config_maps, secrets) = future::try_join(read(&holds.config_maps), read(&holds.secrets)).await?;
        let mut services = Vec::new();
        let catalogue = &self.library.0.services;
        if needs.services {
            services.extend(catalogue.of(self.namespace()).await?);
        }
        if needs.kubernetes_service && !(needs.services && self.namespace() == "default") {
            services.extend(catalogue.get("default", "kubernetes").await?);
        }
        let mut trust_bundles = BTreeMap::new();
        for key in needs.trust_bundles.keys() {
            trust_bundles.insert(TrustKey::clone(key), trust::bundles(self.library.client(), key).await?);
        }
        Ok(Objects { config_maps, secrets, services, trust_bundles, tokens: BTreeMap::new() })
    }

    async fn environment(&self, name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let pod = self.pod()?;
        let needs = env::needs(&pod, name)?;
        let holds = self.hold(&needs);
        let objects = self.gather(&needs, &holds).await?;
        self.keep(|held| {
            held.config_maps.extend(holds.config_maps);
            held.secrets.extend(holds.secrets);
        });
        let node = self.library.node();
        let mut facts = facts.clone();
        if facts.host_ips.is_empty() {
            facts.host_ips.clone_from(&node.ips);
        }
        let (inputs, remarks) = env::container(&pod, name, &facts, &node, &objects)?;
        for remark in &remarks {
            self.tell(notes::remarked(&self.reference, Some(name), remark));
        }
        Ok(inputs)
    }

    /// Whether the pod names the object: nothing else is read, though our rights may go further.
    fn permitted(&self, kind: ReferenceKind, name: &str) -> Result<()> {
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

    async fn whole<K: Shelved>(&self, entry: &Entry<K>, name: &str) -> Result<Arc<K>> {
        let found = entry.read().await?;
        found.ok_or_else(|| {
            let reference = Reference::new(K::KIND, self.namespace(), name);
            let kind = format!("{:?}", K::KIND).to_lowercase();
            Error::new(Kind::Unresolved(reference), format!("{kind} {name:?} not found"))
        })
    }
}

fn held<K: Shelved>(
    shelf: &ObjectCache<K>,
    namespace: &str,
    names: &BTreeMap<String, Need>,
) -> BTreeMap<String, Arc<Entry<K>>> {
    names.keys().map(|name| (name.clone(), shelf.hold(namespace, name))).collect()
}

async fn read<K: Shelved>(
    entries: &BTreeMap<String, Arc<Entry<K>>>,
) -> Result<BTreeMap<String, Option<Arc<K>>>> {
    let reads = entries.iter().map(|(name, entry)| async move { Ok((name.clone(), entry.read().await?)) });
    future::try_join_all(reads).await.map(|found| found.into_iter().collect())
}

#[async_trait]
impl Resolver for PodResolver {
    async fn container(&self, name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let answer = self.0.environment(name, facts).await;
        match &answer {
            Err(error) if *error.kind() == Kind::NotFound => debug!(error = error.report(), "no environment"),
            Err(error) => {
                for event in notes::container_failed(&self.0.reference, name, error) {
                    self.0.tell(event);
                }
            }
            Ok(_) => {}
        }
        answer
    }

    fn volume(&self, name: &str) -> BoxStream<'static, Result<FileSet>> {
        volume::follow(Arc::clone(&self.0), name).boxed()
    }

    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>> {
        self.0.permitted(ReferenceKind::ConfigMap, name)?;
        let entry = self.0.library.0.config_maps.hold(self.0.namespace(), name);
        self.0.keep(|held| drop(held.config_maps.insert(name.to_owned(), Arc::clone(&entry))));
        self.0.whole(&entry, name).await
    }

    async fn secret(&self, name: &str) -> Result<Arc<Secret>> {
        self.0.permitted(ReferenceKind::Secret, name)?;
        let entry = self.0.library.0.secrets.hold(self.0.namespace(), name);
        self.0.keep(|held| drop(held.secrets.insert(name.to_owned(), Arc::clone(&entry))));
        self.0.whole(&entry, name).await
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        self.0.pod()?;
        self.0.library.0.services.of(self.0.namespace()).await
    }

    async fn token(&self, request: &TokenRequest) -> Result<Token> {
        let key = TokenKey {
            audience: request.audience.clone(),
            expiration_seconds: request
                .lifetime
                .map(|lifetime| i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX)),
        };
        tokens::request(self.0.library.client(), &*self.0.pod()?, &key).await
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
            self.0.tell(notes::pull_secrets_missing(&self.0.reference, &missing));
        }
        registry::credentials(image, &secrets)
    }

    async fn claim(&self, name: &str) -> Result<Claim> {
        self.0.permitted(ReferenceKind::PersistentVolumeClaim, name)?;
        storage::claim(self.0.library.client(), self.0.namespace(), name).await
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        let pod = self.0.pod()?;
        let name = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
        let entry = self.0.library.0.runtime_classes.hold("", name);
        self.0.keep(|held| held.runtime_class = Some(Arc::clone(&entry)));
        let found = entry.read().await?;
        found.map(Some).ok_or_else(|| {
            let reference = Reference::new(ReferenceKind::RuntimeClass, "", name);
            Error::new(Kind::Unresolved(reference), format!("RuntimeClass {name:?} not found"))
        })
    }

    fn node(&self) -> NodeFacts {
        self.0.library.node()
    }

    async fn appeared(&self, reference: &Reference) {
        let (library, namespace) = (&self.0.library.0, self.0.namespace());
        let permitted = self.0.permitted(reference.kind, &reference.name).is_ok();
        match reference.kind {
            ReferenceKind::ConfigMap if permitted => {
                let has = |map: &ConfigMap, key: &str| {
                    map.data.as_ref().is_some_and(|data| data.contains_key(key))
                        || map.binary_data.as_ref().is_some_and(|data| data.contains_key(key))
                };
                let fits = |map: &ConfigMap| reference.key.as_deref().is_none_or(|key| has(map, key));
                library.config_maps.hold(namespace, &reference.name).appeared(fits).await;
            }
            ReferenceKind::Secret if permitted => {
                let has = |secret: &Secret, key: &str| {
                    secret.data.as_ref().is_some_and(|data| data.contains_key(key))
                };
                let fits = |secret: &Secret| reference.key.as_deref().is_none_or(|key| has(secret, key));
                library.secrets.hold(namespace, &reference.name).appeared(fits).await;
            }
            ReferenceKind::RuntimeClass => {
                library.runtime_classes.hold("", &reference.name).appeared(|_| true).await;
            }
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}
