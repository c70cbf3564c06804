//! Whether a container runs again after it exits: its restart rules, its own policy, the pod's policy.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod};

/// Rule action: restart the container.
const RESTART: &str = "Restart";
/// Rule action: restart all containers of the pod in place.
const RESTART_ALL: &str = "RestartAllContainers";

/// The pod's restart policy.
pub fn pod_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// Whether a container that exited with this code is restarted: by its first matching rule, else by its own policy, else by the
/// pod's.
pub fn should_restart(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if let Some(own) = container.restart_policy.as_deref() {
        let rule = matching_rule(container, exit_code);
        if rule.is_some_and(|rule| [RESTART, RESTART_ALL].contains(&&*rule.action)) {
            return true;
        }
        if let Some(restart) = by_policy(own, exit_code) {
            return restart;
        }
    }
    by_policy(pod_policy(pod), exit_code).unwrap_or(true)
}

/// Whether this exit code restarts all containers of the pod.
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Whether a container has a rule that restarts all containers of the pod: then any of them may run again after any exit.
pub fn may_restart_all(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers
        .flat_map(|one| one.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == RESTART_ALL)
}

fn by_policy(policy: &str, exit_code: i32) -> Option<bool> {
    match policy {
        "Always" => Some(true),
        "OnFailure" => Some(exit_code != 0),
        "Never" => Some(false),
        _ => None,
    }
}

fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(policy: &str, own: Option<&str>, action: &str) -> Pod {
        let rules = json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
        let rules = own.map(|_| rules);
        let main = json!({"name": "main", "restartPolicy": own, "restartPolicyRules": rules});
        let spec = json!({"restartPolicy": policy, "containers": [main, {"name": "other"}]});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_decides_then_the_containers_policy_then_the_pods() {
        let table = [
            ("Never", None, 42, false),
            ("OnFailure", None, 1, true),
            ("OnFailure", None, 0, false),
            ("Always", None, 0, true),
            ("Never", Some("Never"), 42, true),
            ("Never", Some("Never"), 1, false),
            ("Never", Some("OnFailure"), 1, true),
            ("Always", Some("Never"), 1, false),
        ];
        for action in [RESTART, RESTART_ALL] {
            for (policy, own, code, again) in table {
                let pod = pod(policy, own, action);
                let main = &pod.spec.as_ref().unwrap().containers[0];
                assert_eq!(should_restart(&pod, main, code), again, "{policy} {own:?} {action} {code}");
            }
        }
    }

    #[test]
    fn one_rule_for_all_containers_lets_all_of_them_run_again() {
        assert!(may_restart_all(&pod("Never", Some("Never"), RESTART_ALL)));
        assert!(!may_restart_all(&pod("Never", Some("Never"), RESTART)));
        let pod = pod("Never", Some("Never"), RESTART_ALL);
        let main = &pod.spec.as_ref().unwrap().containers[0];
        assert!(restarts_all(main, 42) && !restarts_all(main, 1));
    }
}
