//! The printed manifests.

use serde_json::{Value, json};

use super::*;

/// The published manifests, which are the printed ones.
const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/placement/rbac.yaml");

fn printed(namespace: &str) -> Vec<Value> {
    let text = manifests(namespace);
    assert!(!text.contains("{{"), "a value is missing: {text}");
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind(kind: &str, namespace: &str) -> Value {
    printed(namespace).into_iter().find(|one| one["kind"] == kind).unwrap()
}

/// The permissions of a role, as `group/resource[names] verbs`.
fn grants(role: &Value) -> Vec<String> {
    let joined = |value: &Value| {
        let all = value.as_array().into_iter().flatten();
        all.map(|one| one.as_str().unwrap()).collect::<Vec<_>>().join(",")
    };
    let rules = role["rules"].as_array().unwrap().iter();
    let texts = rules.map(|rule| {
        let [group, resource, names, verbs] =
            ["apiGroups", "resources", "resourceNames", "verbs"].map(|field| joined(&rule[field]));
        format!("{group}/{resource}[{names}] {verbs}")
    });
    texts.collect()
}

#[test]
fn the_published_manifests_are_the_printed_ones() {
    let published = std::fs::read_to_string(PUBLISHED).unwrap();
    assert!(
        published == manifests("kube-system"),
        "deploy/placement/rbac.yaml is out of date: write the output of `virtual-kubelet placement print rbac` to it"
    );
}

#[test]
fn the_guard_comes_before_the_permissions_that_it_limits() {
    let all = printed("kube-system");
    let kinds: Vec<&str> = all.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
        ]
    );
    for (policy, name) in [(0, GUARD), (2, SECRET_GUARD)] {
        assert_eq!(all[policy]["metadata"]["name"], name);
        assert_eq!(all[policy + 1]["spec"], json!({"policyName": name, "validationActions": ["Deny"]}));
    }
}

#[test]
fn the_second_guard_is_for_every_secret_that_the_service_account_creates() {
    let guard = &printed("infra")[2]["spec"];
    assert_eq!(guard["failurePolicy"], "Fail");
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}]);
    assert_eq!(guard["matchConstraints"], json!({"resourceRules": rules}));
    let expression = format!("request.userInfo.username == '{}'", user("infra"));
    assert_eq!(guard["matchConditions"], json!([{"name": "placement", "expression": expression}]));
}

#[test]
fn the_guard_is_for_every_update_of_pods_by_the_service_account_that_the_roles_are_bound_to() {
    for namespace in ["kube-system", "infra"] {
        let guard = &of_kind("ValidatingAdmissionPolicy", namespace)["spec"];
        assert_eq!(guard["failurePolicy"], "Fail");
        let rules = json!([
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods", "pods/*"]},
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["bindings", "pods/binding"]},
        ]);
        assert_eq!(guard["matchConstraints"], json!({"resourceRules": rules}));
        let expression = format!("request.userInfo.username == '{}'", user(namespace));
        assert_eq!(guard["matchConditions"], json!([{"name": "placement", "expression": expression}]));

        let metadata = json!({"name": NAME, "namespace": namespace});
        for kind in ["ServiceAccount", "Role", "RoleBinding"] {
            assert_eq!(of_kind(kind, namespace)["metadata"], metadata, "{kind}");
        }
        for (kind, role) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
            let binding = of_kind(kind, namespace);
            let subject = json!({"kind": "ServiceAccount", "name": NAME, "namespace": namespace});
            assert_eq!(binding["subjects"], json!([subject]), "{kind}");
            let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": NAME});
            assert_eq!(binding["roleRef"], role, "{kind}");
        }
    }
}

#[test]
fn the_roles_grant_what_placement_calls_and_nothing_else() {
    assert_eq!(
        grants(&of_kind("ClusterRole", "kube-system")),
        [
            "/nodes[] list,watch",
            "/nodes/placement[] create",
            "/pods[] list,watch,patch",
            "/pods/status[] patch",
            "/pods/eviction[] create",
            "/persistentvolumeclaims[] get",
            "batch/jobs[] get",
            "events.k8s.io/events[] create,patch",
        ]
    );
    assert_eq!(
        grants(&of_kind("Role", "kube-system")),
        [
            "coordination.k8s.io/leases[virtual-kubelet-placement,virtual-kubelet-placement-serving] get,patch",
            "coordination.k8s.io/leases[] create",
            "/configmaps[virtual-kubelet-placement] get,list,watch,patch",
            "/serviceaccounts/token[virtual-kubelet-placement] create",
            "/secrets[virtual-kubelet-placement-tls] get,list,watch,patch",
            "/secrets[] create",
        ]
    );
}

#[test]
fn the_permission_for_the_webhook_is_for_its_configuration_only() {
    let text = webhook_manifests("infra");
    assert!(!text.contains("{{"), "a value is missing: {text}");
    let all: Vec<Value> =
        text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect();
    let [guard, guard_binding, role, binding] = &all[..] else { panic!("{text}") };
    let resources = &guard["spec"]["matchConstraints"]["resourceRules"][0]["resources"];
    assert_eq!(resources, &json!(["mutatingwebhookconfigurations"]));
    let expression = format!("request.userInfo.username == '{}'", user("infra"));
    assert_eq!(guard["spec"]["matchConditions"], json!([{"name": "placement", "expression": expression}]));
    let bound = json!({"policyName": guard["metadata"]["name"], "validationActions": ["Deny"]});
    assert_eq!(guard_binding["spec"], bound);
    assert_eq!(
        grants(role),
        [
            "admissionregistration.k8s.io/mutatingwebhookconfigurations[virtual-kubelet-placement] list,watch,patch"
        ]
    );
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let subject = json!({"kind": "ServiceAccount", "name": NAME, "namespace": "infra"});
    assert_eq!(binding["subjects"], json!([subject]));
}

#[test]
fn the_permissions_are_those_of_the_roles() {
    let all: Vec<String> = permissions("infra").iter().map(ToString::to_string).collect();
    for one in [
        "watch pods",
        "patch pods/status",
        "get jobs.batch",
        "create leases.coordination.k8s.io in namespace infra",
    ] {
        assert!(all.iter().any(|permission| permission == one), "{one}: {all:?}");
    }
    assert!(all.contains(&format!("patch configmaps/{NAME} in namespace infra")), "{all:?}");
    let rules = ["ClusterRole", "Role"].map(|kind| of_kind(kind, "infra")["rules"].as_array().unwrap().len());
    assert!(all.len() >= rules.iter().sum(), "{all:?}");
}
