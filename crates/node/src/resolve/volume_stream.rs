//! The files of a volume as a stream: the current set, then a new set for every change.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{
    FutureExt as _, Stream,
    future::{self, BoxFuture},
    stream,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::sync::watch;
use vk_provider::{
    Error, Result,
    error::{Kind, Reaction},
    resolve::{FileSet, TokenLifetime},
};
use vk_supervisor::Backoff;

use super::{
    events,
    fetched_objects::RequiredObjects,
    files,
    object_cache::{CachedObject, Changes, Entry},
    pod_resolver::{HeldObjects, Inner},
};

/// A complete set now and after each change, until the pod is gone.
pub(super) fn follow(
    pod: Arc<Inner>,
    name: &str,
    tokens: TokenLifetime,
) -> impl Stream<Item = Result<FileSet>> + Send + use<> {
    let stream_state = VolumeStream {
        pods: pod.pod.subscribe(),
        pod,
        name: name.to_owned(),
        tokens,
        last_item: None,
        changed: None,
        holds: HeldObjects::default(),
        next_check: None,
        backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
        rng: StdRng::from_rng(&mut rand::rng()),
        finished: false,
    };
    stream::unfold(stream_state, |mut stream_state| async move {
        let item = stream_state.next().await?;
        Some((item, stream_state))
    })
}

struct VolumeStream {
    pod: Arc<Inner>,
    pods: watch::Receiver<Option<Arc<Pod>>>,
    name: String,
    tokens: TokenLifetime,
    /// The last item of the stream.
    last_item: Option<Result<FileSet, String>>,
    /// Resolves when a source object has changed; `None` before the first resolution.
    changed: Option<BoxFuture<'static, ()>>,
    /// Keeps the source objects current.
    holds: HeldObjects,
    /// When to resolve again without a change.
    next_check: Option<NextCheck>,
    /// Backoff after failures.
    backoff: Backoff,
    rng: StdRng,
    finished: bool,
}

enum NextCheck {
    /// After some time.
    After(Duration),
    /// At a wall-clock time, because a token must be renewed.
    At(Timestamp),
}

impl VolumeStream {
    async fn next(&mut self) -> Option<Result<FileSet>> {
        loop {
            if self.finished {
                return None;
            }
            if self.changed.is_some() {
                self.wait().await;
            }
            let pod = self.pods.borrow_and_update().clone()?;
            let resolved = self.resolve(&pod).await;
            if self.pods.borrow().is_none() {
                return None;
            }
            let last_item = match &resolved {
                Ok(set) => Ok(set.clone()),
                Err(error) => Err(error.report()),
            };
            self.schedule_next_check(resolved.as_ref().err());
            if self.last_item.as_ref() == Some(&last_item) {
                continue;
            }
            self.last_item = Some(last_item);
            self.report(resolved.as_ref().err());
            return Some(resolved.map_err(|error| self.with_volume_name(error)));
        }
    }

    async fn wait(&mut self) {
        let Self { pod, pods, changed, next_check, .. } = self;
        let next_check = async {
            match next_check {
                None => future::pending().await,
                Some(NextCheck::After(wait)) => tokio::time::sleep(*wait).await,
                Some(NextCheck::At(moment)) => pod.factory.sleep_until(*moment).await,
            }
        };
        let changed = async {
            match changed {
                Some(changed) => changed.await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            () = next_check => {}
            () = changed => {}
            // The end of the pod is also a change.
            _ = pods.changed() => {}
        }
    }

    async fn resolve(&mut self, pod: &Arc<Pod>) -> Result<FileSet> {
        self.next_check = None;
        // Nothing to wait for yet.
        self.changed = Some(Box::pin(future::pending()));
        let required = files::required_objects(pod, &self.name)?;
        self.holds = self.pod.hold(&required);
        let (maps, secrets) = future::join(
            read_and_subscribe_all(&self.holds.config_maps),
            read_and_subscribe_all(&self.holds.secrets),
        )
        .await;
        let changes: Vec<_> = maps.into_iter().chain(secrets).collect();
        if !changes.is_empty() {
            self.changed = Some(Box::pin(async move { drop(future::select_all(changes).await) }));
        }
        let mut objects = self.pod.fetch(&required, &self.holds).await?;
        let factory = self.pod.factory.clone();
        let mut renewal: Option<Timestamp> = None;
        for key in &required.tokens {
            let (token, renew_at) =
                self.pod.tokens.get(factory.client(), factory.clock(), pod, key, self.tokens).await?;
            objects.tokens.insert(key.clone(), token);
            renewal = Some(renewal.map_or(renew_at, |other| other.min(renew_at)));
        }
        self.next_check = renewal.map(NextCheck::At).or_else(|| trust_bundle_check(&required, factory.ttl()));
        let (set, warnings) = files::volume(pod, &self.name, &factory.node(), &objects)?;
        for warning in &warnings {
            self.pod.publish_once(events::for_warning(&self.pod.reference, None, warning));
        }
        Ok(set)
    }

    /// Schedules the next resolution after a failure.
    fn schedule_next_check(&mut self, error: Option<&Error>) {
        let Some(error) = error else { return self.backoff.reset() };
        if error.kind().reaction() == Reaction::Refuse {
            self.finished = true;
            return;
        }
        // Watched objects report changes; others must be read again.
        let wait = self.backoff.next(error.kind().retry_after(), &mut self.rng);
        self.next_check = Some(NextCheck::After(wait));
    }

    fn report(&self, error: Option<&Error>) {
        match error {
            Some(error) => {
                self.pod.publish_once(events::volume_failed(&self.pod.reference, &self.name, error));
            }
            None => self.pod.forget_published(&["FailedMount"], &format!("volume {:?}", self.name)),
        }
    }

    /// Adds the volume's name to an unresolved reference.
    fn with_volume_name(&self, error: Error) -> Error {
        let Kind::Unresolved(reference) = error.kind() else { return error };
        let reference = reference.clone().of_volume(&self.name);
        Error::new(Kind::Unresolved(reference), error.report())
    }
}

/// Reads all objects and returns, for each, a future that resolves at its next change.
async fn read_and_subscribe_all<K: CachedObject>(
    entries: &BTreeMap<String, Arc<Entry<K>>>,
) -> Vec<BoxFuture<'static, ()>> {
    let reads = future::join_all(entries.values().map(|entry| entry.read_and_subscribe())).await;
    let next = |mut changes: Changes<K>| async move { changes.next().await }.boxed();
    reads.into_iter().map(|(_, changes)| next(changes)).collect()
}

/// Trust bundles are not watched, so they are read periodically.
fn trust_bundle_check(required: &RequiredObjects, period: Duration) -> Option<NextCheck> {
    (!required.trust_bundles.is_empty()).then_some(NextCheck::After(period))
}
