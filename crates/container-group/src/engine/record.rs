//! What the engine remembers of a pod beside its groups. All of it can be lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::oneshot;
use vk_provider::resolve::FileSet;

use super::{
    events::EventMark,
    file_watch::{FileWatch, VolumeFiles},
};
use crate::{
    backend::{CallResult, GroupEvent, Plan, Size},
    identity::SpecHash,
    lifecycle::Request,
};

/// How long a group may take to get another size. The cloud may have given another one than was computed.
const LONGEST_RESIZE: Duration = Duration::from_mins(10);

/// What is remembered of a pod.
#[derive(Debug)]
pub(super) struct PodRecord<R> {
    /// The pod as the core wants it.
    pub(super) pod: Option<Arc<Pod>>,
    /// The request for its next group.
    pub(super) plan: Option<Arc<Plan<R>>>,
    /// The files in that request.
    pub(super) planned_files: VolumeFiles,
    /// The files of the create that was sent last, until they are watched.
    pub(super) created_with: Option<VolumeFiles>,
    /// The watch of the files.
    pub(super) file_watch: Option<FileWatch>,
    /// What the group was made from, or updated to.
    pub(super) spec_hash: Option<SpecHash>,
    /// The size that the group is getting, and since when.
    pub(super) resize: Option<(Size, Duration)>,
    /// The status that was published last.
    pub(super) published: Option<PodStatus>,
    /// The annotations that were set last.
    pub(super) annotations: BTreeMap<String, Option<String>>,
    /// The newest warning.
    pub(super) warning: Option<String>,
    /// Up to which of the cloud's events all were published.
    pub(super) mark: Option<EventMark>,
    /// Events without a time that were published.
    pub(super) untimed: BTreeSet<(String, String)>,
    /// What of the cloud's answers could not be understood last.
    pub(super) malformed: Vec<String>,
    /// Events that wait until the core has spoken of the pod.
    pub(super) held: Vec<GroupEvent>,
    /// Calls of the core that wait.
    pub(super) waiters: Vec<(Request, oneshot::Sender<CallResult<()>>)>,
}

// === impl PodRecord ===

impl<R> Default for PodRecord<R> {
    fn default() -> Self {
        Self {
            pod: None,
            plan: None,
            planned_files: VolumeFiles::default(),
            created_with: None,
            file_watch: None,
            spec_hash: None,
            resize: None,
            published: None,
            annotations: BTreeMap::new(),
            warning: None,
            mark: None,
            untimed: BTreeSet::new(),
            malformed: Vec::new(),
            held: Vec::new(),
            waiters: Vec::new(),
        }
    }
}

impl<R> PodRecord<R> {
    /// Stores what the core wants. Returns whether it is the first time. `group_hash` is what an existing group was made from.
    pub(super) fn set_pod(&mut self, pod: &Arc<Pod>, group_hash: Option<&str>) -> bool {
        if self.spec_hash.is_none() {
            // A group without a readable hash is taken for what it should be.
            self.spec_hash = Some(group_hash.and_then(SpecHash::parse).unwrap_or_else(|| SpecHash::of(pod)));
        }
        if self.mark.is_none() {
            self.mark = EventMark::of(pod);
        }
        self.pod.replace(Arc::clone(pod)).is_none()
    }

    /// Stores the request for the next group, and ends the watch of the files of an earlier one.
    pub(super) fn set_plan(&mut self, pod: &Arc<Pod>, plan: Plan<R>, files: BTreeMap<String, FileSet>) {
        self.set_pod(pod, None);
        self.spec_hash = Some(SpecHash::of(pod));
        self.plan = Some(Arc::new(plan));
        self.planned_files = Arc::new(files);
        self.created_with = None;
        self.file_watch = None;
    }

    /// The group gets this size.
    pub(super) fn begin_resize(&mut self, now: Duration, size: Option<Size>) {
        self.resize = size.map(|size| (size, now));
    }

    /// Ends the resize when the group has its size, or when nothing came of it.
    pub(super) fn check_resize(&mut self, now: Duration, seen: Option<&Size>) {
        self.resize.take_if(|(size, since)| {
            let has_size = seen.is_some_and(|seen| seen.cpu == size.cpu && seen.memory == size.memory);
            has_size || now >= *since + LONGEST_RESIZE
        });
    }

    /// Answers those who wait.
    pub(super) fn settle(&mut self, request: Request, result: &CallResult<()>) {
        for (waiting, sender) in std::mem::take(&mut self.waiters) {
            if waiting == request {
                // Whoever gave up does not need the answer.
                let _ = sender.send(result.clone());
            } else {
                self.waiters.push((waiting, sender));
            }
        }
    }
}
