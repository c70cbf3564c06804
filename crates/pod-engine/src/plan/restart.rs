//! Whether a container is restarted after it exits.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod};

/// Rule action: restart the container.
const RESTART: &str = "Restart";
/// Rule action: restart all containers of the pod in their sandbox.
const RESTART_ALL: &str = "RestartAllContainers";

/// Whether a container that exited with this code is restarted: by its first matching rule, else by its own policy, else by the pod's.
pub fn should_restart(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if let Some(own) = container.restart_policy.as_deref() {
        if matching(container, exit_code).is_some_and(|rule| [RESTART, RESTART_ALL].contains(&&*rule.action))
        {
            return true;
        }
        if let Some(restart) = by_policy(own, exit_code) {
            return restart;
        }
    }
    by_policy(policy(pod), exit_code).unwrap_or(true)
}

/// Whether this exit code restarts all containers of the pod.
pub(crate) fn restarts_all(container: &Container, exit_code: i32) -> bool {
    matching(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Whether a container that the engine stops is restarted.
pub(super) fn restarts_after_stop(pod: &Pod, container: &Container) -> bool {
    container.restart_policy.as_deref().unwrap_or_else(|| policy(pod)) != "Never"
}

/// Whether the container is done after its first success.
pub(super) fn runs_once(pod: &Pod, container: &Container) -> bool {
    container.restart_policy.as_deref().unwrap_or_else(|| policy(pod)) == "OnFailure"
}

/// The pod's restart policy.
pub(super) fn policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always")
}

fn by_policy(policy: &str, exit_code: i32) -> Option<bool> {
    match policy {
        "Always" => Some(true),
        "OnFailure" => Some(exit_code != 0),
        "Never" => Some(false),
        _ => None,
    }
}

fn matching(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.as_deref().unwrap_or_default().iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.as_deref().unwrap_or_default().contains(&exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}
