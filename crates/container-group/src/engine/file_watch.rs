//! Changes of files: a group keeps the files that it was made with, so a later change is an event, once for each volume; or the group is
//! updated in place, where the cloud can and the settings allow it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::select_all};
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
use crate::{GroupBackend, backend::Action, identity::SpecHash, reconciler::PodView};

/// The wait before files are replaced again after a failure; twice as long before each further try.
const RETRY: Duration = Duration::from_secs(5);
/// How often it is tried.
const TRIES: u32 = 6;

/// Why files were not replaced.
enum NotReplaced {
    /// The pod has no group any more.
    Gone,
    /// It failed, and may succeed later.
    Retry(String),
    /// It fails for ever.
    Refused(String),
}

impl<B: GroupBackend> EngineContext<B> {
    /// Warns of tokens that will expire, and watches the volumes of a pod whose group was made with these files.
    pub(super) fn watch_files(
        self: &Arc<Self>,
        pod: &PodRef,
        bundle: &PodBundle,
        files: &BTreeMap<String, FileSet>,
    ) {
        let replaces = self.replaces_files();
        if !replaces {
            self.warn_of_expiry(pod, files);
        }
        // A volume with tokens changes with each of them: that is no event for a group that keeps its files.
        let is_watched = |set: &FileSet| replaces || set.expires.is_none();
        let mut current: BTreeMap<String, FileSet> = files
            .iter()
            .filter(|(_, set)| is_watched(set))
            .map(|(name, set)| (name.clone(), set.clone()))
            .collect();
        let volumes = bundle.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let names = volumes.filter(|volume| has_files(volume) && current.contains_key(&volume.name));
        let tokens = if replaces { TokenLifetime::Specified } else { TokenLifetime::Longest };
        let streams: Vec<_> = names
            .map(|volume| {
                let name = volume.name.clone();
                bundle.resolver.volume(&name, tokens).map(move |set| (name.clone(), set)).boxed()
            })
            .collect();
        if streams.is_empty() {
            return;
        }
        let mut sets = select_all(streams);
        let (this, pod, bundle) = (Arc::clone(self), pod.clone(), bundle.clone());
        self.supervisor.spawn("volume files", Kind::Work, async move {
            loop {
                let next = tokio::select! {
                    next = sets.next() => next,
                    () = this.supervisor.stopping() => return,
                };
                let Some((volume, set)) = next else { return };
                let view = |this: &Self| {
                    matches!(this.state.lock().reconciler.view(&pod.uid), PodView::Present(_) | PodView::Creating)
                };
                if !view(&this) {
                    return;
                }
                let Ok(set) = set else { continue };
                if current.get(&volume).is_none_or(|before| before.files == set.files) {
                    continue;
                }
                if replaces {
                    let replaced = tokio::select! {
                        replaced = this.replace_files(&pod, &bundle, &volume) => replaced,
                        () = this.supervisor.stopping() => return,
                    };
                    if !replaced {
                        return;
                    }
                    current.insert(volume, set);
                } else {
                    current.remove(&volume);
                    let message = format!(
                        "volume {volume:?} has changed; this container group keeps the files that it was created with"
                    );
                    this.event(&pod, EventKind::Warning, "FilesNotUpdated", message);
                }
                if current.is_empty() {
                    return;
                }
            }
        });
    }

    fn replaces_files(&self) -> bool {
        self.settings.file_updates == FileUpdates::Replace && self.backend.caps().updates.files
    }

    fn warn_of_expiry(&self, pod: &PodRef, files: &BTreeMap<String, FileSet>) {
        for (volume, set) in files {
            if let Some(expires) = set.expires {
                let message = format!(
                    "volume {volume:?}: its token expires at {expires}; this cloud cannot renew the files of a running container group"
                );
                self.event(pod, EventKind::Warning, "TokenNotRenewed", message);
            }
        }
    }

    /// Updates the group with the files that its volumes have now. Returns whether the pod still has a group.
    async fn replace_files(&self, pod: &PodRef, bundle: &PodBundle, volume: &str) -> bool {
        let mut wait = RETRY;
        for tries_left in (0..TRIES).rev() {
            let problem = match self.update_files(pod, bundle).await {
                Ok(()) => {
                    let message = format!("the files of volume {volume:?} were replaced");
                    self.event(pod, EventKind::Normal, "FilesUpdated", message);
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
            self.event(pod, EventKind::Warning, "FilesNotUpdated", message);
            return true;
        }
        true
    }

    async fn update_files(&self, pod: &PodRef, bundle: &PodBundle) -> Result<(), NotReplaced> {
        let retry = |error: &dyn std::fmt::Display| NotReplaced::Retry(error.to_string());
        // The pod as it is now: its images may have been updated since.
        let (group, desired) = {
            let state = self.state.lock();
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
        let desired = desired.unwrap_or_else(|| Arc::clone(&bundle.pod));
        let bundle = PodBundle { pod: Arc::clone(&desired), resolver: Arc::clone(&bundle.resolver) };
        let resolved =
            inputs::resolve(&bundle, &self.settings.node_ips).await.map_err(|error| retry(&error))?;
        let plan = self
            .backend
            .translate(&resolved)
            .map_err(|rejection| NotReplaced::Refused(rejection.to_string()))?;
        match self.call(Action::Update, self.backend.update(&group, &plan)).await {
            Ok(()) => {
                self.state.lock().record(pod).spec_hash = Some(SpecHash::of(&desired));
                Ok(())
            }
            Err(error) => {
                use crate::backend::Class::{Invalid, NotFound, Unsupported};
                Err(match error.class {
                    NotFound => NotReplaced::Gone,
                    Invalid | Unsupported => NotReplaced::Refused(error.to_string()),
                    _ => retry(&error),
                })
            }
        }
    }
}
