//! The files of a volume, as they are and as they become.

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
    resolve::FileSet,
};
use vk_supervisor::Backoff;

use super::{
    files, notes,
    object_cache::{Changes, Entry, Shelved},
    objects::Needs,
    pod_resolver::{Holds, Inner},
};

/// A whole set now, and another for each change, until the pod goes.
pub(super) fn follow(pod: Arc<Inner>, name: &str) -> impl Stream<Item = Result<FileSet>> + Send + use<> {
    let following = Following {
        pods: pod.pod.subscribe(),
        pod,
        name: name.to_owned(),
        said: None,
        news: None,
        holds: Holds::default(),
        again: None,
        backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
        rng: StdRng::from_rng(&mut rand::rng()),
        over: false,
    };
    stream::unfold(following, |mut following| async move {
        let item = following.next().await?;
        Some((item, following))
    })
}

struct Following {
    pod: Arc<Inner>,
    pods: watch::Receiver<Option<Arc<Pod>>>,
    name: String,
    /// What was said last.
    said: Option<Result<FileSet, String>>,
    /// Resolves when an object that the files are made of has changed; `None` before the first look.
    news: Option<BoxFuture<'static, ()>>,
    /// Keeps those objects current.
    holds: Holds,
    /// When to look again although nothing has changed.
    again: Option<Again>,
    /// For looks that fail.
    backoff: Backoff,
    rng: StdRng,
    over: bool,
}

enum Again {
    /// After some time.
    After(Duration),
    /// When the wall clock says so, because a token is to be renewed then.
    At(Timestamp),
}

impl Following {
    async fn next(&mut self) -> Option<Result<FileSet>> {
        loop {
            if self.over {
                return None;
            }
            if self.news.is_some() {
                self.wait().await;
            }
            let pod = self.pods.borrow_and_update().clone()?;
            let looked = self.look(&pod).await;
            if self.pods.borrow().is_none() {
                return None;
            }
            let said = match &looked {
                Ok(set) => Ok(set.clone()),
                Err(error) => Err(error.report()),
            };
            self.plan(looked.as_ref().err());
            if self.said.as_ref() == Some(&said) {
                continue;
            }
            self.said = Some(said);
            self.tell(looked.as_ref().err());
            return Some(looked.map_err(|error| self.named(error)));
        }
    }

    async fn wait(&mut self) {
        let Self { pod, pods, news, again, .. } = self;
        let again = async {
            match again {
                None => future::pending().await,
                Some(Again::After(wait)) => tokio::time::sleep(*wait).await,
                Some(Again::At(moment)) => pod.library.until(*moment).await,
            }
        };
        let news = async {
            match news {
                Some(news) => news.await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            () = again => {}
            () = news => {}
            // An end is a change too.
            _ = pods.changed() => {}
        }
    }

    async fn look(&mut self, pod: &Arc<Pod>) -> Result<FileSet> {
        self.again = None;
        // Until something else is known to wait for.
        self.news = Some(Box::pin(future::pending()));
        let needs = files::needs(pod, &self.name)?;
        self.holds = self.pod.hold(&needs);
        let (maps, secrets) = future::join(looks(&self.holds.config_maps), looks(&self.holds.secrets)).await;
        let changes: Vec<_> = maps.into_iter().chain(secrets).collect();
        if !changes.is_empty() {
            self.news = Some(Box::pin(async move { drop(future::select_all(changes).await) }));
        }
        let mut objects = self.pod.gather(&needs, &self.holds).await?;
        let library = self.pod.library.clone();
        let mut renewal: Option<Timestamp> = None;
        for key in &needs.tokens {
            let (token, renew_at) = self.pod.tokens.get(library.client(), library.clock(), pod, key).await?;
            objects.tokens.insert(key.clone(), token);
            renewal = Some(renewal.map_or(renew_at, |other| other.min(renew_at)));
        }
        self.again = renewal.map(Again::At).or_else(|| bundles(&needs, library.ttl()));
        let (set, remarks) = files::volume(pod, &self.name, &library.node(), &objects)?;
        for remark in &remarks {
            self.pod.tell(notes::remarked(&self.pod.reference, None, remark));
        }
        Ok(set)
    }

    /// When to look again.
    fn plan(&mut self, error: Option<&Error>) {
        let Some(error) = error else { return self.backoff.reset() };
        if error.kind().reaction() == Reaction::Refuse {
            self.over = true;
            return;
        }
        // What is watched tells by itself; what is not must be looked for.
        let wait = self.backoff.next(error.kind().retry_after(), &mut self.rng);
        self.again = Some(Again::After(wait));
    }

    fn tell(&self, error: Option<&Error>) {
        match error {
            Some(error) => {
                self.pod.tell(notes::volume_failed(&self.pod.reference, &self.name, error));
            }
            None => self.pod.untell(&["FailedMount"], &format!("volume {:?}", self.name)),
        }
    }

    /// Says which volume needs what is missing.
    fn named(&self, error: Error) -> Error {
        let Kind::Unresolved(reference) = error.kind() else { return error };
        let reference = reference.clone().of_volume(&self.name);
        Error::new(Kind::Unresolved(reference), error.report())
    }
}

/// For each object, what resolves when something new is known of it after a first look.
async fn looks<K: Shelved>(entries: &BTreeMap<String, Arc<Entry<K>>>) -> Vec<BoxFuture<'static, ()>> {
    let looks = future::join_all(entries.values().map(|entry| entry.look())).await;
    let next = |mut changes: Changes<K>| async move { changes.next().await }.boxed();
    looks.into_iter().map(|(_, changes)| next(changes)).collect()
}

/// Bundles are not watched.
fn bundles(needs: &Needs, period: Duration) -> Option<Again> {
    (!needs.trust_bundles.is_empty()).then_some(Again::After(period))
}
