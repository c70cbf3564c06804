use serde_json::{Value, json};

use super::*;
use crate::{
    names::{NODE, ORIGIN, ORIGIN_UID},
    owner_config_map,
};

fn owner(node: &str) -> OwnerId {
    OwnerId { origin: "o".to_owned(), node: node.to_owned() }
}

fn object<K: serde::de::DeserializeOwned>(name: &str, edit: &Value) -> K {
    let mut value = json!({"metadata": {
        "name": name, "namespace": "ns", "uid": format!("uid-of-{name}"), "resourceVersion": "7", "labels": {ORIGIN: "o"},
    }});
    merge(&mut value, edit);
    serde_json::from_value(value).unwrap()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn pod(name: &str, node: &str, claim: &str, map: &str) -> Pod {
    object(
        name,
        &json!({"metadata": {"labels": {NODE: node}}, "spec": {"containers": [], "volumes": [
            {"name": "c", "persistentVolumeClaim": {"claimName": claim}}, {"name": "m", "configMap": {"name": map}},
        ]}}),
    )
}

fn owner_of(node: &str) -> ConfigMap {
    object(&owner_config_map::name(&owner(node)), &json!({"metadata": {"labels": {NODE: node}}}))
}

fn copy<K: serde::de::DeserializeOwned>(name: &str, node: &str) -> K {
    let owner_name = owner_config_map::name(&owner(node));
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner_name, "uid": format!("uid-of-{owner_name}")});
    object(name, &json!({"metadata": {"ownerReferences": [reference]}}))
}

fn claim(name: &str) -> PersistentVolumeClaim {
    object(name, &json!({"metadata": {"annotations": {ORIGIN_UID: "u"}}}))
}

fn names(objects_listed: &[OwnedObject]) -> Vec<&str> {
    objects_listed.iter().map(|object| object.item.name.as_str()).collect()
}

fn two_nodes() -> Inventory {
    Inventory {
        pods: vec![pod("pa", "a", "ca", "shared"), pod("pb", "b", "cb", "shared")],
        config_maps: vec![
            owner_of("a"),
            owner_of("b"),
            copy("shared", "a"),
            copy("ma", "a"),
            copy("mb", "b"),
        ],
        secrets: vec![copy("sa", "a"), copy("sb", "b")],
        accounts: vec![copy("aa", "a"), object("stray", &json!({}))],
        claims: vec![claim("ca"), claim("cb"), claim("unused"), object("bare", &json!({}))],
    }
}

#[test]
fn objects_of_the_node_are_removed_and_those_of_others_stay() {
    let plan = two_nodes().plan(&owner("a"), false);
    let [claims, owner_maps, pods, copies] = &plan.steps;
    assert_eq!(names(claims), ["ca"]);
    assert_eq!(names(owner_maps), [owner_config_map::name(&owner("a"))]);
    assert_eq!(names(pods), ["pa"]);
    assert_eq!(names(copies), ["ma", "sa", "aa"]);
    let left: Vec<String> = plan.left.iter().map(|(item, why)| format!("{item}: {why}")).collect();
    assert_eq!(
        left,
        [
            "PersistentVolumeClaim ns/cb: pods of virtual node b use it",
            "PersistentVolumeClaim ns/unused: no pod uses it, and it may belong to virtual node b",
            "PersistentVolumeClaim ns/bare: it is not marked as a copy",
        ]
    );
}

#[test]
fn copies_that_another_node_uses_are_handed_over() {
    let found = two_nodes();
    let plan = found.plan(&owner("a"), false);
    let [one] = plan.handovers.as_slice() else { panic!("{:?}", plan.handovers) };
    assert_eq!((one.item.name.as_str(), one.version.as_str()), ("shared", "7"));
    let names: Vec<&str> = one.owners.iter().map(|owner| owner.name.as_str()).collect();
    assert_eq!(names, [owner_config_map::name(&owner("b"))]);
    assert_eq!(one.owners[0].controller, None, "it is no pod");
}

#[test]
fn without_other_nodes_all_claims_are_removed_unless_kept() {
    let mut found = two_nodes();
    found.pods.retain(|pod| pod.metadata.name.as_deref() == Some("pa"));
    found
        .config_maps
        .retain(|map| map.metadata.labels.as_ref().unwrap().get(NODE).is_none_or(|node| node == "a"));
    let plan = found.plan(&owner("a"), false);
    assert_eq!(names(&plan.steps[0]), ["ca", "cb", "unused"]);
    assert!(plan.handovers.is_empty(), "{:?}", plan.handovers);
    let plan = found.plan(&owner("a"), true);
    assert_eq!((names(&plan.steps[0]).len(), plan.left.len()), (0, 4));
    assert_eq!(names(&plan.steps[2]), ["pa"]);
}

#[test]
fn an_empty_origin_is_rejected() {
    for origin in ["", "a,b", "a=b", "a b", &"x".repeat(64)] {
        assert_eq!(check_origin(origin).unwrap_err().kind, Kind::Invalid, "{origin:?}");
    }
    check_origin("0c7a2b1e-1f4d-4a53-9d56-0d1f5d5c1b11").unwrap();
}
