//! Statuses of the containers that the upper pod has.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateWaiting, ContainerStatus, Pod, PodStatus, ResourceRequirements,
    VolumeMount,
};

use super::truncate::{MAX_MESSAGE, MAX_NAME, MAX_REASON, truncate, truncate_optional};

/// The reason of containers whose pod does not fit on any lower node now.
const LOWER_UNSCHEDULABLE: &str = "LowerUnschedulable";

/// The parts of an upper container that limit its status.
struct UpperContainer<'a> {
    name: &'a str,
    image: &'a str,
    mounts: &'a [VolumeMount],
    resources: Option<&'a ResourceRequirements>,
    /// How many lower pods were replaced.
    replaced: i32,
}

/// Whether no kubelet has reported the containers yet.
pub(super) fn has_no_statuses(below: &PodStatus) -> bool {
    below.container_statuses.iter().chain(&below.init_container_statuses).all(Vec::is_empty)
}

/// Fills in the container statuses.
pub(super) fn fill_in(below: &PodStatus, upper: &Pod, replaced: i32, status: &mut PodStatus) {
    let none = PodStatus::default();
    let there = upper.status.as_ref().unwrap_or(&none);
    let Some(spec) = upper.spec.as_ref() else { return };
    let replaced = replaced.max(0);
    let container = |container| UpperContainer::of(container, replaced);
    let regular: Vec<UpperContainer<'_>> = spec.containers.iter().map(container).collect();
    let init: Vec<UpperContainer<'_>> = spec.init_containers.iter().flatten().map(container).collect();
    // Ephemeral containers are not recreated with a lower pod.
    let ephemeral: Vec<UpperContainer<'_>> = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|one| UpperContainer {
            name: &one.name,
            image: one.image.as_deref().unwrap_or_default(),
            mounts: one.volume_mounts.as_deref().unwrap_or_default(),
            resources: None,
            replaced: 0,
        })
        .collect();
    let list = |containers: &[UpperContainer<'_>],
                said: Option<&[ContainerStatus]>,
                had: Option<&[ContainerStatus]>| {
        let one = |container: &UpperContainer<'_>| {
            Some(container.reported(find(said, container.name)?, find(had, container.name)))
        };
        some(containers.iter().filter_map(one).collect())
    };
    status.ephemeral_container_statuses =
        list(&ephemeral, below.ephemeral_container_statuses.as_deref(), None);
    let had = there.container_statuses.as_deref();
    let had_init = there.init_container_statuses.as_deref();
    // Otherwise the core would keep the statuses of the earlier lower pod, running and ready (Admiralty 7).
    if has_no_statuses(below) && !super::is_terminal(below) && !super::is_terminal(there) {
        let usual = if init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
        let why = ContainerStateWaiting { reason: Some(usual.to_owned()), message: None };
        let why = unschedulable(below).unwrap_or(why);
        let wait = |containers: &[UpperContainer<'_>], had: Option<&[ContainerStatus]>| {
            some(
                containers
                    .iter()
                    .map(|container| container.waiting(find(had, container.name), &why))
                    .collect(),
            )
        };
        status.container_statuses = wait(&regular, had);
        status.init_container_statuses = wait(&init, had_init);
        return;
    }
    status.container_statuses = list(&regular, below.container_statuses.as_deref(), had);
    status.init_container_statuses = list(&init, below.init_container_statuses.as_deref(), had_init);
}

/// Why the containers wait, if the lower scheduler finds no node for them.
fn unschedulable(below: &PodStatus) -> Option<ContainerStateWaiting> {
    let conditions = below.conditions.as_deref().unwrap_or_default();
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let waits = scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable");
    waits.then(|| ContainerStateWaiting {
        reason: Some(LOWER_UNSCHEDULABLE.to_owned()),
        message: truncate_optional(scheduled.message.as_ref(), MAX_MESSAGE),
    })
}

fn some(all: Vec<ContainerStatus>) -> Option<Vec<ContainerStatus>> {
    (!all.is_empty()).then_some(all)
}

fn find<'a>(list: Option<&'a [ContainerStatus]>, name: &str) -> Option<&'a ContainerStatus> {
    list?.iter().find(|status| status.name == name)
}

// === impl UpperContainer ===

impl<'a> UpperContainer<'a> {
    fn of(container: &'a Container, replaced: i32) -> Self {
        Self {
            name: &container.name,
            image: container.image.as_deref().unwrap_or_default(),
            mounts: container.volume_mounts.as_deref().unwrap_or_default(),
            resources: container.resources.as_ref(),
            replaced,
        }
    }

    /// The status from the lower pod. It is built field by field, so that each new field has to be considered.
    fn reported(&self, said: &ContainerStatus, had: Option<&ContainerStatus>) -> ContainerStatus {
        let requests = self.resources.and_then(|resources| resources.requests.as_ref());
        // The API server rejects device statuses for devices that the container did not request, and a lower webhook may have added some.
        let devices = said.allocated_resources_status.clone().map(|mut all| {
            all.retain(|one| requests.is_some_and(|requests| requests.contains_key(&one.name)));
            all
        });
        let mounts = said.volume_mounts.clone().map(|mut all| {
            all.retain(|one| {
                self.mounts.iter().any(|known| known.name == one.name && known.mount_path == one.mount_path)
            });
            all
        });
        ContainerStatus {
            name: self.name.to_owned(),
            ready: said.ready,
            started: said.started,
            restart_count: self.restarts(said.restart_count, had),
            state: said.state.as_ref().map(state),
            last_state: said.last_state.as_ref().map(state),
            image: truncate(&said.image, MAX_NAME),
            image_id: truncate(&said.image_id, MAX_NAME),
            container_id: truncate_optional(said.container_id.as_ref(), MAX_NAME),
            allocated_resources: said.allocated_resources.clone(),
            allocated_resources_status: devices.filter(|all| !all.is_empty()),
            resources: said.resources.clone(),
            volume_mounts: mounts.filter(|all| !all.is_empty()),
            user: said.user.clone(),
            stop_signal: truncate_optional(said.stop_signal.as_ref(), MAX_REASON),
        }
    }

    /// The status of a container between two lower pods.
    fn waiting(&self, had: Option<&ContainerStatus>, why: &ContainerStateWaiting) -> ContainerStatus {
        ContainerStatus {
            name: self.name.to_owned(),
            image: self.image.to_owned(),
            started: Some(false),
            restart_count: self.restarts(0, had),
            state: Some(ContainerState { waiting: Some(why.clone()), ..ContainerState::default() }),
            ..ContainerStatus::default()
        }
    }

    /// A replaced lower pod counts as a restart of all its containers. The lower count starts at zero again, the upper count does not.
    fn restarts(&self, below: i32, had: Option<&ContainerStatus>) -> i32 {
        let sum = below.max(0).saturating_add(self.replaced);
        let before = had.map_or(0, |had| had.restart_count);
        if self.replaced > 0 { sum.max(before) } else { sum }
    }
}

fn state(from: &ContainerState) -> ContainerState {
    let mut state = from.clone();
    let cut = |text: &mut Option<String>, most| *text = truncate_optional(text.as_ref(), most);
    if let Some(waiting) = &mut state.waiting {
        cut(&mut waiting.reason, MAX_REASON);
        cut(&mut waiting.message, MAX_MESSAGE);
    }
    if let Some(ended) = &mut state.terminated {
        cut(&mut ended.reason, MAX_REASON);
        cut(&mut ended.message, MAX_MESSAGE);
        cut(&mut ended.container_id, MAX_NAME);
    }
    state
}
