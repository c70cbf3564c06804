//! `config dump`, `config schema`, `config check`, and the precedence of layers.

use serde_json::Value;

use crate::{Run, vk};

/// What `config dump` says.
#[track_caller]
fn dump(run: Run) -> Value {
    serde_saphyr::from_str(&run.run().ok()).unwrap()
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = "provider: mock\nnodeName: from-file\nport: 1001\nstatusInterval: 1m\n";
    let dumped = dump(vk(&["config", "dump"]).file(file));
    assert_eq!(
        (&dumped["nodes"][0]["name"], &dumped["nodes"][0]["port"]),
        (&"from-file".into(), &1001.into())
    );

    let dumped =
        dump(vk(&["config", "dump"]).file(file).env("DEFAULT_NODE_NAME", "go").env("KUBELET_PORT", "1002"));
    assert_eq!((&dumped["nodes"][0]["name"], &dumped["nodes"][0]["port"]), (&"go".into(), &1002.into()));

    let run = vk(&["config", "dump"]).file(file).env("KUBELET_PORT", "1002").env("VK_PORT", "1003");
    assert_eq!(dump(run)["nodes"][0]["port"], 1003);

    let run = vk(&["config", "dump", "--port", "1004", "--nodename=flag"]).file(file).env("VK_PORT", "1003");
    let dumped = dump(run.env("VK_NODE_NAME", "env"));
    assert_eq!((&dumped["nodes"][0]["name"], &dumped["nodes"][0]["port"]), (&"flag".into(), &1004.into()));
    assert_eq!((&dumped["statusInterval"], &dumped["pingInterval"]), (&"1m".into(), &"10s".into()));
}

#[test]
fn variables_of_placement_win_over_the_file_of_a_command_without_its_flags() {
    let file = "provider: mock\nplacement: {gates: estimate, order: [a], namespace: vk}\n";
    let run = vk(&["config", "dump"]).file(file);
    let dumped = dump(run.env("VK_PLACEMENT_GATES", "trial").env("VK_PLACEMENT_ORDER", "local,b"));
    let placement = &dumped["placement"];
    assert_eq!((&placement["gates"], &placement["namespace"]), (&"trial".into(), &"vk".into()));
    assert_eq!(placement["order"], serde_json::json!(["local", "b"]));
    assert_eq!(dump(vk(&["config", "dump"]).file("provider: mock\n"))["placement"]["gates"], Value::Null);
    let wrong = vk(&["config", "check"]).file(file).env("VK_PLACEMENT_GATES", "maybe");
    wrong.run().refused(2, &[&["placement", "maybe", "--gates", "VK_PLACEMENT_"]]);
}

#[test]
fn the_file_can_be_named_by_a_variable() {
    let run = vk(&["config", "dump"]);
    let path = run.write("other.yaml", "provider: mock\nnodeName: other\n");
    assert_eq!(dump(run.env("VK_CONFIG", path.to_str().unwrap()))["nodes"][0]["name"], "other");
}

#[test]
fn every_variable_of_the_go_original_counts() {
    let run = vk(&["config", "dump", "--provider", "mock"])
        .env("KUBECONFIG", "/kube")
        .env("KUBELET_PORT", "10300")
        .env("DEFAULT_NODE_NAME", "go")
        .env("VKUBELET_POD_IP", "10.1.2.3")
        .env("VKUBELET_TAINT_KEY", "example.com/key")
        .env("VKUBELET_TAINT_VALUE", "value")
        .env("VKUBELET_TAINT_EFFECT", "NoExecute")
        .env("APISERVER_CERT_LOCATION", "/cert")
        .env("APISERVER_KEY_LOCATION", "/key")
        .env("APISERVER_CA_CERT_LOCATION", "/ca")
        .env("MASTER_URI", "https://10.0.0.1:6443");
    let dumped = dump(run);
    let node = &dumped["nodes"][0];
    assert_eq!((&node["name"], &node["port"]), (&"go".into(), &10300.into()));
    assert_eq!(node["internalIP"], "10.1.2.3");
    let taint = serde_json::json!([{"key": "example.com/key", "value": "value", "effect": "NoExecute"}]);
    assert_eq!(node["taints"], taint);
    assert_eq!(
        dumped["tls"],
        serde_json::json!({"certFile": "/cert", "keyFile": "/key", "clientCAFile": "/ca", "request": true})
    );
    assert_eq!(
        (&dumped["kubeconfig"], &dumped["apiServer"]),
        (&"/kube".into(), &"https://10.0.0.1:6443".into())
    );
    let run = vk(&["config", "dump", "--provider", "mock"]).env("DEFAULTNODE_NAME", "node-cli");
    assert_eq!(dump(run)["nodes"][0]["name"], "node-cli");
}

#[test]
fn the_dump_can_be_used_as_a_file_and_holds_no_secrets() {
    let file = "provider: mock\nproviderConfig: {region: x, apiToken: hush}\nnodes: [{count: 3}]\nmetricsAddr: off\n";
    let first = vk(&["config", "dump"]).file(file).run().ok();
    assert!(first.contains("region: x") && !first.contains("hush"), "{first}");
    let again = vk(&["config", "dump"]).file(&first).run().ok();
    assert_eq!(first, again);
}

#[test]
fn the_schema_knows_every_key_that_is_dumped() {
    let schema: Value = serde_json::from_str(&vk(&["config", "schema"]).run().ok()).unwrap();
    let file = "provider: mock\nproviderConfig: {x: 1}\nkubeconfig: k\napiServer: 'https://a'\naddress: 127.0.0.1\n\
                internalIP: 127.0.0.1\nlabels: {a: b}\nannotations: {a: b}\ntls: {certFile: a, keyFile: b, clientCAFile: c}\n";
    let dumped = dump(vk(&["config", "dump"]).file(file));
    let mut seen = 0;
    known(&schema, &schema, &dumped, &mut seen);
    assert!(seen > 40, "{seen} keys in {dumped:#}");
}

/// Checks that a schema has every key of a value.
fn known(root: &Value, schema: &Value, value: &Value, seen: &mut usize) {
    if let Some(name) = schema["$ref"].as_str() {
        return known(root, root.pointer(name.trim_start_matches('#')).unwrap(), value, seen);
    }
    let inner = schema["anyOf"].as_array().and_then(|any| any.iter().find(|option| option["type"] != "null"));
    if let Some(inner) = inner {
        return known(root, inner, value, seen);
    }
    match value {
        Value::Object(map) if schema["properties"].is_object() => {
            for (key, value) in map {
                assert!(schema["properties"][key].is_object(), "the schema does not know {key}");
                *seen += 1;
                known(root, &schema["properties"][key], value, seen);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| known(root, &schema["items"], item, seen)),
        _ => {}
    }
}

#[test]
fn a_good_file_is_ok_and_a_bad_one_is_not() {
    let good =
        "provider: mock\nnodes:\n- {name: big}\n- {count: 100, namePattern: 'small-{}', portBase: 20000}\n";
    assert_eq!(vk(&["config", "check"]).file(good).run().ok(), "ok\n");
    let bad = vk(&["config", "check"]).file("provider: mock\nport: 0\nos: x\n").run();
    bad.refused(2, &[&["port:"], &["os:"]]);
}

#[test]
fn the_example_of_the_reference_is_right() {
    let page = include_str!("../../../docs/reference/configuration.md");
    let example = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(vk(&["config", "check"]).file(example).run().ok(), "ok\n");
}
