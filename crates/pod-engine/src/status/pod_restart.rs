//! Pods whose containers are all restarted in place because a restart rule matched an exit code.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_provider::restart_policy::restarts_all;

use super::{conditions::RESTARTING, containers::terminated, find};
use crate::{
    containers::{Role, pod_containers},
    snapshot::{ContainerState, Snapshot},
};

/// Reason in the container statuses of such a pod.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";

/// Whether all containers are being restarted: the previous status says so, or the exit code of a container triggers it.
pub(super) fn is_restarting(pod: &Pod, snapshot: &Snapshot, old: &PodStatus) -> bool {
    let reported = old.conditions.iter().flatten().any(|one| one.type_ == RESTARTING && one.status == "True");
    let lists = [&old.init_container_statuses, &old.container_statuses];
    reported
        || pod_containers(pod).filter(|container| container.role != Role::Ephemeral).any(|container| {
            let name = &container.spec.name;
            let record = snapshot.newest(name).filter(|record| record.state == ContainerState::Exited);
            // Without a record in the runtime nothing is left to restart.
            let Some(record) = record else { return false };
            let known =
                lists.into_iter().flatten().find_map(|list| terminated(find(list, name)?.state.as_ref()));
            let codes = [Some(record.exit_code), known.map(|ended| ended.exit_code)];
            codes.into_iter().flatten().any(|code| restarts_all(&container.spec, code))
        })
}
