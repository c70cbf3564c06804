//! Whether a container that has ended is started again.

use k8s_openapi::api::core::v1::{Container, Pod};

/// Whether a container that ended with this code is started again: its own rules first, then its own policy, then the pod's.
pub(super) fn restarts(pod: &Pod, container: &Container, code: i32) -> bool {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    if container.restart_policy.is_some() && rule(container, code) {
        return true;
    }
    match container.restart_policy.as_deref().or(of_pod) {
        Some("Never") => false,
        Some("OnFailure") => code != 0,
        _ => true,
    }
}

/// Whether the first rule that matches the code asks for a restart.
fn rule(container: &Container, code: i32) -> bool {
    let first = container.restart_policy_rules.iter().flatten().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let named = codes.values.iter().flatten().any(|value| *value == code);
            match codes.operator.as_str() {
                "In" => named,
                "NotIn" => !named,
                _ => false,
            }
        })
    });
    first.is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | "RestartAllContainers"))
}
