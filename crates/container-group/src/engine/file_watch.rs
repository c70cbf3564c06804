//! Changes of files: a group keeps the files that it was made with, so a later change is an event, once for each volume; or the group is
//! updated in place, where the cloud can and the settings allow it.
//!
//! A pod is watched once, however its group came to be. Of a group that another process made it is not known which files it has: the first
//! set that the API server gives is what later sets are compared with. A token is different: that of the group may be about to expire.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, future::join_all};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tracing::debug;
use vk_provider::{
    EventKind, PodBundle, PodRef,
    resolve::{FileSet, TokenLifetime},
};
use vk_supervisor::task::Kind;

use super::{
    context::EngineContext,
    inputs::{self, has_files},
    settings::FileUpdates,
};
use crate::{GroupBackend, identity::SpecHash, reconciler::PodView};

/// The wait before files are replaced again after a failure; twice as long before each further try.
const RETRY: Duration = Duration::from_secs(5);
/// How often it is tried.
const TRIES: u32 = 6;

/// The files of a pod's volumes, by volume name.
pub(super) type VolumeFiles = Arc<BTreeMap<String, FileSet>>;

/// The watch of a pod's volumes. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct FileWatch {
    _alive: oneshot::Sender<()>,
}

/// Why files were not replaced.
enum NotReplaced {
    /// The pod has no group any more.
    Gone,
    /// It failed, and may succeed later.
    Retry(String),
    /// It fails for ever.
    Refused(String),
}

/// What a new set of files means for a group.
enum Change {
    /// The group has these files, as far as is known.
    None,
    /// The group has other files.
    Files,
    /// The group was made by another process with a token that is not known.
    Token {
        /// When it expires, at the latest.
        expires: Timestamp,
    },
}

/// What the volumes of one pod are watched for.
struct PodWatch<B: GroupBackend> {
    context: Arc<EngineContext<B>>,
    pod: PodRef,
    bundle: PodBundle,
    replaces: bool,
    /// One update of the group at a time.
    update: tokio::sync::Mutex<()>,
}

impl<B: GroupBackend> EngineContext<B> {
    /// Watches the volumes of a pod that has a group, if that is not done yet. Warns of tokens that will expire.
    pub(super) fn watch_files(self: &Arc<Self>, pod: &PodRef, bundle: &PodBundle) {
        let (ended, known) = {
            let mut state = self.state.lock();
            let record = state.record(pod);
            if record.file_watch.is_some() {
                return;
            }
            let (alive, ended) = oneshot::channel();
            record.file_watch = Some(FileWatch { _alive: alive });
            (ended, record.created_with.take())
        };
        let replaces = self.replaces_files();
        if let Some(files) = known.as_ref().filter(|_| !replaces) {
            self.warn_of_expiry(pod, files);
        }
        // A volume with tokens changes with each of them: that is no event for a group that keeps its files.
        let is_watched = |name: &str| {
            let set = known.as_ref().map(|files| files.get(name));
            replaces || set.is_none_or(|set| set.is_some_and(|set| set.expires.is_none()))
        };
        let volumes = bundle.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let volumes = volumes.filter(|volume| has_files(volume)).map(|volume| volume.name.clone());
        let volumes: Vec<String> = volumes.filter(|name| is_watched(name)).collect();
        if volumes.is_empty() {
            return;
        }
        let context = Arc::clone(self);
        let (pod, bundle) = (pod.clone(), bundle.clone());
        let watch = PodWatch { context, pod, bundle, replaces, update: tokio::sync::Mutex::default() };
        self.supervisor.spawn("volume files", Kind::Work, async move {
            let known = |name: &String| known.as_ref().and_then(|files| files.get(name).cloned());
            let all = join_all(volumes.iter().map(|name| watch.volume(name, known(name))));
            tokio::select! {
                _ = all => {}
                // The pod is forgotten, or gets another group.
                _ = ended => {}
                () = watch.context.supervisor.stopping() => {}
            }
        });
    }

    fn replaces_files(&self) -> bool {
        self.settings.file_updates == FileUpdates::Replace && self.backend.caps().updates.files
    }

    fn warn_of_expiry(&self, pod: &PodRef, files: &BTreeMap<String, FileSet>) {
        for (volume, set) in files {
            if let Some(expires) = set.expires {
                self.warn_of_token(pod, volume, &format!("at {expires}"));
            }
        }
    }

    fn warn_of_token(&self, pod: &PodRef, volume: &str, when: &str) {
        let message = format!(
            "volume {volume:?}: its token expires {when}; this cloud cannot renew the files of a running container group"
        );
        self.event(pod, EventKind::Warning, "TokenNotRenewed", message);
    }
}

// === impl PodWatch ===

impl<B: GroupBackend> PodWatch<B> {
    /// Watches one volume, until nothing is left to do for it. `current` are the files that the group has, if they are known.
    async fn volume(&self, volume: &str, mut current: Option<FileSet>) {
        let tokens = if self.replaces { TokenLifetime::Specified } else { TokenLifetime::Longest };
        let mut sets = self.bundle.resolver.volume(volume, tokens);
        while let Some(set) = sets.next().await {
            if !self.has_group() {
                return;
            }
            // A missing object is awaited. A pod that runs is not refused because of it.
            let Ok(set) = set else { continue };
            match self.change(current.as_ref(), &set) {
                Change::None => {}
                Change::Token { expires } if !self.replaces => {
                    let when = format!("at {expires} at the latest");
                    return self.context.warn_of_token(&self.pod, volume, &when);
                }
                Change::Files if !self.replaces => return self.report_change(volume),
                Change::Files | Change::Token { .. } => {
                    let _turn = self.update.lock().await;
                    if !self.replace(volume).await {
                        return;
                    }
                }
            }
            current = Some(set);
        }
    }

    fn has_group(&self) -> bool {
        let state = self.context.state.lock();
        matches!(state.reconciler.view(&self.pod.uid), PodView::Present(_) | PodView::Creating)
    }

    fn change(&self, current: Option<&FileSet>, set: &FileSet) -> Change {
        match (current, set.expires) {
            (Some(current), _) if current.files == set.files => Change::None,
            (Some(_), _) => Change::Files,
            (None, None) => Change::None,
            (None, Some(expires)) => Change::Token { expires: self.expires_before(expires) },
        }
    }

    /// When a token expires at the latest that was made for the group, if one that is made now expires at this time.
    fn expires_before(&self, expires: Timestamp) -> Timestamp {
        let state = self.context.state.lock();
        let PodView::Present(group) = state.reconciler.view(&self.pod.uid) else { return expires };
        let age = group.observed().created.map(|created| created.duration_until(self.context.clock.now()));
        let estimate = age.and_then(|age| expires.checked_sub(age).ok()).unwrap_or(expires).min(expires);
        // The same text after each restart is the same event.
        estimate.round(jiff::Unit::Minute).unwrap_or(estimate)
    }

    fn report_change(&self, volume: &str) {
        let message = format!(
            "volume {volume:?} has changed; this container group keeps the files that it was created with"
        );
        self.context.event(&self.pod, EventKind::Warning, "FilesNotUpdated", message);
    }

    /// Updates the group with the files that its volumes have now. Returns whether the pod still has a group.
    async fn replace(&self, volume: &str) -> bool {
        let pod = &self.pod;
        let mut wait = RETRY;
        for tries_left in (0..TRIES).rev() {
            let problem = match self.update_group().await {
                Ok(()) => {
                    let message = format!("the files of volume {volume:?} were replaced");
                    self.context.event(pod, EventKind::Normal, "FilesUpdated", message);
                    return true;
                }
                Err(NotReplaced::Gone) => return false,
                Err(NotReplaced::Retry(problem)) if tries_left > 0 => {
                    debug!(%pod, volume, problem, "the files were not replaced, and will be tried again");
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                    continue;
                }
                Err(NotReplaced::Retry(problem) | NotReplaced::Refused(problem)) => problem,
            };
            let message =
                format!("volume {volume:?} has changed, and its files were not replaced: {problem}");
            self.context.event(pod, EventKind::Warning, "FilesNotUpdated", message);
            return true;
        }
        true
    }

    async fn update_group(&self) -> Result<(), NotReplaced> {
        let retry = |error: &dyn std::fmt::Display| NotReplaced::Retry(error.to_string());
        let (context, pod) = (&self.context, &self.pod);
        // The pod as it is now: its images may have been updated since.
        let (group, desired) = {
            let state = context.state.lock();
            let group = match state.reconciler.view(&pod.uid) {
                PodView::Present(group) if group.has_ended() || !group.is_kept() => {
                    return Err(NotReplaced::Gone);
                }
                PodView::Present(group) => group.group().clone(),
                PodView::Absent => return Err(NotReplaced::Gone),
                PodView::Creating | PodView::Unclear => return Err(retry(&"the group does not exist yet")),
            };
            if !state.reconciler.is_leading() {
                return Err(retry(&"another process owns the node"));
            }
            (group, state.records.get(&pod.uid).and_then(|record| record.pod.clone()))
        };
        let desired = desired.unwrap_or_else(|| Arc::clone(&self.bundle.pod));
        let resolver = Arc::clone(&self.bundle.resolver);
        let bundle = PodBundle { pod: Arc::clone(&desired), resolver };
        let resolved =
            inputs::resolve(&bundle, &context.settings.node_ips).await.map_err(|error| retry(&error))?;
        let plan = context
            .backend
            .translate(&resolved)
            .map_err(|rejection| NotReplaced::Refused(rejection.to_string()))?;
        let updated = context.update_group(pod, &group, &plan, &SpecHash::of(&desired)).await;
        updated.map_err(|error| {
            use crate::backend::Class::{Invalid, NotFound, Unsupported};
            match error.class {
                NotFound => NotReplaced::Gone,
                Invalid | Unsupported => NotReplaced::Refused(error.to_string()),
                _ => retry(&error),
            }
        })
    }
}
