//! `virtual-kubelet groups` without an API server.

use serde_json::Value;

use crate::{Outcome, vk};

const GROUPS: &str = "groups:\n\
    - {id: g-1, cluster: shop, node: a, pod: {namespace: shop, name: web, uid: u-1}, cpu: '2', memory: 4Gi, pricePerHour: 0.1224, \
       begin: 2026-01-01T00:00:00Z, end: 2026-01-01T10:00:00Z, state: Succeeded}\n\
    - {id: g-2, cluster: shop, node: b, pod: {namespace: shop, name: db, uid: u-2}}\n\
    - {id: g-3, cluster: other, node: a, pod: {namespace: shop, name: db, uid: u-3}}\n";

fn groups(arguments: &[&str]) -> Outcome {
    let fixed = ["groups", "--provider", "mock", "--provider-config", "mock.yaml"];
    let run = vk(&[&fixed[..], arguments].concat());
    run.write("mock.yaml", GROUPS);
    run.run()
}

#[test]
fn without_an_api_server_groups_are_listed_and_none_is_called_orphaned() {
    let seen = groups(&[]);
    assert_eq!(seen.code, 0, "{seen:#?}");
    let mut lines = seen.stdout.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["NODE", "POD", "GROUP", "STATE", "SIZE", "PRICE/H", "AGE", "COST"]);
    let first = lines.next().unwrap();
    let cells: Vec<&str> = first.split_whitespace().collect();
    assert_eq!(cells, ["a", "shop/db", "g-3", "Running", "-", "-", "-", "-"]);
    let ended = lines.next().unwrap();
    assert!(
        ended.contains("shop/web") && ended.contains("2-4Gi") && ended.ends_with("1.22 USD"),
        "{seen:#?}"
    );
    assert!(
        seen.stdout.contains("\ntotal: 3 groups, 0.0000 USD/h, 1.22 USD, 2 without a price\n"),
        "{seen:#?}"
    );
    assert!(!seen.stdout.contains("orphaned"), "{seen:#?}");
    assert!(seen.stderr.starts_with("warning: cannot tell which groups are orphaned: "), "{seen:#?}");
    assert_eq!(seen.stderr.lines().count(), 1, "{seen:#?}");
    let orphaned = groups(&["--orphaned"]);
    assert_eq!((orphaned.code, orphaned.stdout.lines().count()), (0, 1), "{orphaned:#?}");
}

#[test]
fn groups_are_chosen_by_node_and_cluster() {
    let ids = |arguments: &[&str]| -> Vec<String> {
        let seen = groups(&[arguments, &["-o", "json"]].concat());
        let json: Value = serde_json::from_str(&seen.stdout).unwrap();
        json["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| group["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&[]), ["g-3", "g-1", "g-2"]);
    assert_eq!(ids(&["--node", "a"]), ["g-3", "g-1"]);
    assert_eq!(ids(&["--cluster-name", "shop"]), ["g-1", "g-2"]);
    assert_eq!(ids(&["--cluster-name", "shop", "--node", "b"]), ["g-2"]);
}

#[test]
fn the_json_says_what_is_not_known() {
    let json: Value = serde_json::from_str(&groups(&["--node", "b", "-o", "json"]).stdout).unwrap();
    let group = &json["groups"][0];
    assert_eq!(group["pod"]["uid"], "u-2", "{json}");
    assert!(group["podExists"].is_null() && group["cost"].is_null(), "{json}");
    assert_eq!(group["orphaned"], false, "{json}");
}

#[test]
fn nothing_is_removed_without_an_api_server() {
    groups(&["--remove", "g-2"]).refused(1, &[&["group g-2 is not removed", "its pod may exist"]]);
    groups(&["--remove", "g-2", "--kubeconfig", "nosuch"])
        .refused(1, &[&["group g-2 is not removed", "nosuch"]]);
    groups(&["--remove", "g-9"]).refused(1, &[&["no group g-9", "virtual-kubelet groups"]]);
}

#[test]
fn a_provider_without_groups_says_so_and_ends_with_1() {
    for provider in ["mock", "cri", "local", "cluster"] {
        let seen = vk(&["groups", "--provider", provider]).run();
        seen.refused(1, &[&[&format!("provider {provider}: "), "nothing to list"]]);
    }
    vk(&["groups"]).run().refused(2, &[&["provider: is not given"]]);
    let wrong = vk(&["groups", "--provider", "mock", "--provider-config", "m.yaml"]);
    wrong.write("m.yaml", "groups: [{id: g, begin: soon}]");
    wrong.run().refused(2, &[&["m.yaml", "groups[0].begin", "soon"]]);
}
