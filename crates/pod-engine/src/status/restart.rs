//! Pods that are restarted whole, in the sandbox that they have, because a container ended in a way that its rules name.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod, PodStatus};

use super::{conditions::RESTARTING, containers::ended, find};
use crate::{
    parts::{Role, parts},
    snapshot::{ContainerState, Snapshot},
};

/// The word for what happens to the containers of such a pod.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";

/// Whether the pod is being restarted whole: that was said before, or one of its containers has ended so.
pub(super) fn is_restarting(pod: &Pod, snapshot: &Snapshot, old: &PodStatus) -> bool {
    let said = old.conditions.iter().flatten().any(|one| one.type_ == RESTARTING && one.status == "True");
    let lists = [&old.init_container_statuses, &old.container_statuses];
    said || parts(pod).filter(|part| part.role != Role::Ephemeral).any(|part| {
        let name = &part.container.name;
        let record = snapshot.newest(name).filter(|record| record.state == ContainerState::Exited);
        // The record counts before what was said; where the runtime has none, nothing is left to be restarted.
        let Some(record) = record else { return false };
        let known = lists.into_iter().flatten().find_map(|list| ended(find(list, name)?.state.as_ref()));
        let codes = [Some(record.exit_code), known.map(|ended| ended.exit_code)];
        codes.into_iter().flatten().any(|code| restarts_all(&part.container, code))
    })
}

/// Whether any container of the pod can have it restarted whole.
pub(super) fn may_restart(pod: &Pod) -> bool {
    let mut rules =
        parts(pod).flat_map(|part| part.container.restart_policy_rules.clone().unwrap_or_default());
    rules.any(|rule| is_for_all(&rule))
}

fn restarts_all(container: &Container, code: i32) -> bool {
    let matches = |rule: &&ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let named = codes.values.iter().flatten().any(|value| *value == code);
            matches!((codes.operator.as_str(), named), ("In", true) | ("NotIn", false))
        })
    };
    container.restart_policy_rules.iter().flatten().find(matches).is_some_and(is_for_all)
}

fn is_for_all(rule: &ContainerRestartRule) -> bool {
    rule.action == "RestartAllContainers"
}
