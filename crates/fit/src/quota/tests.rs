#![expect(clippy::needless_pass_by_value, reason = "reads better")]

use serde_json::{Value, json};

use super::*;

fn quota(hard: Value, used: Value, spec: Value) -> ResourceQuota {
    let mut quota =
        json!({"metadata": {"name": "team"}, "spec": spec, "status": {"hard": hard, "used": used}});
    quota["spec"]["hard"] = hard;
    serde_json::from_value(quota).unwrap()
}

fn pod(requests: &Value, limits: &Value, spec: Value) -> Pod {
    let container = json!({"name": "main", "resources": {"requests": requests, "limits": limits}});
    let mut pod = json!({"spec": {"containers": [container]}});
    crate::testing::merge(&mut pod["spec"], spec);
    serde_json::from_value(pod).unwrap()
}

fn check<'a>(quotas: impl IntoIterator<Item = &'a ResourceQuota>, pod: &Pod, held: &[&Pod]) -> Admission {
    let mut quotas = NamespaceQuotas::new(quotas);
    for held in held {
        quotas.add(held);
    }
    quotas.check(pod)
}

fn plain(cpu: &str) -> Pod {
    pod(&json!({"cpu": cpu}), &Value::Null, json!({}))
}

#[test]
fn a_quota_admits_as_many_pods_as_it_has_left() {
    let team = quota(json!({"cpu": "8", "pods": "10"}), json!({"cpu": "3", "pods": "1"}), json!({}));
    assert_eq!(check([&team], &plain("2"), &[]), Admission::Admits { room: 2 });
    let many = quota(json!({"pods": "10"}), json!({"pods": "1"}), json!({}));
    assert_eq!(check([&team, &many], &plain("1m"), &[]), Admission::Admits { room: 9 });
    assert_eq!(check([], &plain("1"), &[]), Admission::Admits { room: u32::MAX });
}

#[test]
fn a_quota_that_is_short_says_how_much_is_left() {
    let team = quota(json!({"cpu": "8"}), json!({"cpu": "6"}), json!({}));
    let Admission::Exceeded(shortage) = check([&team], &plain("3"), &[]) else { panic!("only 2 are left") };
    assert_eq!(shortage.to_string(), "quota \"team\" has 2 of 8 cpu left");
    assert!(!shortage.is_lasting());
    let Admission::Exceeded(shortage) = check([&team], &plain("9"), &[]) else { panic!("only 8 in all") };
    assert!(shortage.is_lasting());
}

#[test]
fn held_pods_count_where_the_quota_counts_them() {
    let team = quota(json!({"requests.cpu": "8"}), json!({"requests.cpu": "4"}), json!({}));
    let (held, batch) =
        (plain("3"), pod(&json!({"cpu": "3"}), &Value::Null, json!({"activeDeadlineSeconds": 5})));
    assert!(matches!(check([&team], &plain("2"), &[&held]), Admission::Exceeded(_)));
    let scoped = quota(
        json!({"requests.cpu": "8"}),
        json!({"requests.cpu": "4"}),
        json!({"scopes": ["NotTerminating"]}),
    );
    assert_eq!(check([&scoped], &plain("2"), &[&batch]), Admission::Admits { room: 2 });
    assert_eq!(check([&scoped], &batch, &[&held]), Admission::Admits { room: u32::MAX }, "not in its scope");
}

#[test]
fn scopes_choose_the_pods_of_a_quota() {
    let best_effort = || pod(&Value::Null, &Value::Null, json!({}));
    let classed = |class: &str| pod(&Value::Null, &Value::Null, json!({"priorityClassName": class}));
    let selector = |operator: &str, values: &[&str]| {
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
    };
    let crossing = pod(
        &Value::Null,
        &Value::Null,
        json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "x", "namespaces": ["other"]}}]}}}),
    );
    for (spec, pod, counts) in vec![
        (json!({"scopes": ["BestEffort"]}), best_effort(), true),
        (json!({"scopes": ["BestEffort"]}), plain("1"), false),
        (json!({"scopes": ["NotBestEffort"]}), plain("1"), true),
        (json!({"scopes": ["NotBestEffort", "Terminating"]}), plain("1"), false),
        (selector("In", &["high"]), classed("high"), true),
        (selector("In", &["high"]), classed("low"), false),
        (selector("NotIn", &["high"]), best_effort(), true),
        (selector("Exists", &[]), classed("low"), true),
        (selector("DoesNotExist", &[]), classed("low"), false),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), crossing, true),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), best_effort(), false),
    ] {
        let full = quota(json!({"pods": "1"}), json!({"pods": "1"}), spec.clone());
        let exceeded = matches!(check([&full], &pod, &[]), Admission::Exceeded(_));
        assert_eq!(exceeded, counts, "{spec}");
    }
}

#[test]
fn a_quota_on_cpu_or_memory_demands_it_of_every_container() {
    let team = quota(json!({"limits.memory": "8Gi"}), json!({"limits.memory": "0"}), json!({}));
    let missing = Admission::MustSpecify { quota: "team".into(), resource: "limits.memory".into() };
    assert_eq!(check([&team], &plain("1"), &[]), missing);
    let limited = pod(&Value::Null, &json!({"memory": "2Gi"}), json!({}));
    assert_eq!(check([&team], &limited, &[]), Admission::Admits { room: 4 });
    let whole = json!({"resources": {"limits": {"memory": "4Gi"}}});
    assert_eq!(check([&team], &pod(&Value::Null, &Value::Null, whole), &[]), Admission::Admits { room: 2 });
    let storage = quota(
        json!({"limits.ephemeral-storage": "1Gi"}),
        json!({"limits.ephemeral-storage": "0"}),
        json!({}),
    );
    assert_eq!(check([&storage], &plain("1"), &[]), Admission::Admits { room: u32::MAX });
}

#[test]
fn extended_resources_count_by_their_requests() {
    let team =
        quota(json!({"requests.example.com/gpu": "4"}), json!({"requests.example.com/gpu": "3"}), json!({}));
    let gpus = |count: &str| pod(&json!({"example.com/gpu": count}), &Value::Null, json!({}));
    assert_eq!(check([&team], &gpus("1"), &[]), Admission::Admits { room: 1 });
    assert!(matches!(check([&team], &gpus("2"), &[]), Admission::Exceeded(_)));
}

#[test]
fn a_quota_that_is_not_counted_yet_admits_nothing_for_sure() {
    let new: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "new"}, "spec": {"hard": {"pods": "1"}}}))
            .unwrap();
    assert_eq!(check([&new], &plain("1"), &[]), Admission::NotCounted { quota: "new".into() });
    let services: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"hard": {"services": "1"}}}))
            .unwrap();
    assert_eq!(check([&services], &plain("1"), &[]), Admission::Admits { room: u32::MAX });
}

#[test]
fn a_quota_restricts_the_verdict_of_the_nodes() {
    let fits = || Verdict::Fits { room: 9, fullness: 50 };
    let team = quota(json!({"cpu": "8"}), json!({"cpu": "6"}), json!({}));
    let restricted = |verdict, cpu: &str| restrict(verdict, &check([&team], &plain(cpu), &[])).to_string();
    assert_eq!(restricted(fits(), "1"), "fits (room for 2, 50% full)");
    assert_eq!(restricted(fits(), "3"), "quota \"team\" has 2 of 8 cpu left");
    assert_eq!(restricted(Verdict::unknown("x"), "3"), "quota \"team\" has 2 of 8 cpu left");
    assert_eq!(restricted(Verdict::unknown("x"), "1"), "unknown: x");
    let lasting = Verdict::refused("too small", true);
    assert_eq!(restricted(lasting, "3"), "too small");
}
