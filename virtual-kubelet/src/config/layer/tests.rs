use proptest::prelude::*;

use super::*;

fn yaml(text: &str) -> (Value, Vec<String>) {
    let (layer, problems) = Layer::from_yaml(text, "vk.yaml");
    (Value::Object(layer.0), problems.iter().map(ToString::to_string).collect())
}

fn env(variables: &[(&str, &str)]) -> (Value, Vec<String>) {
    let lookup =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let (layer, problems) = Layer::from_env(lookup);
    (Value::Object(layer.0), problems.iter().map(ToString::to_string).collect())
}

#[test]
fn an_empty_file_is_an_empty_layer() {
    for text in ["", "# nothing\n", "---\n", "{}"] {
        assert_eq!(yaml(text), (serde_json::json!({}), vec![]), "{text:?}");
    }
    assert_eq!(
        yaml("nodeName:\ntaint:\n  key:\nnodes:\n- name:\n").0,
        serde_json::json!({"taint": {}, "nodes": [{}]})
    );
}

#[test]
fn all_problems_of_a_file_are_found_at_once() {
    let (rest, problems) = yaml(
        "providr: mock\nport: 70000\nos: plan9\nnodes:\n- name: Bad_Name\n  prot: 1\n- name: good\n  taint: {efect: NoSchedule}\n\
         - just text\npingTimeout: 5\nlog: {level: loud}\n",
    );
    let expected = [
        ("providr", "did you mean `provider`?"),
        ("port", "1 to 65535"),
        ("os", "linux, windows"),
        ("nodes[0].name", "DNS-1123"),
        ("nodes[0].prot", "did you mean `port`?"),
        ("nodes[1].taint.efect", "did you mean `effect`?"),
        ("nodes[2]", "expected struct NodeSettings"),
        ("pingTimeout", "with a unit"),
        ("log.level", "is not a log level"),
    ];
    for (key, words) in expected {
        let found = problems.iter().any(|line| {
            line.starts_with(&format!("{key}: ")) && line.contains(words) && line.ends_with("(from vk.yaml)")
        });
        assert!(found, "{key}: {words} in {problems:#?}");
    }
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    assert_eq!(rest, serde_json::json!({"nodes": [{}, {"name": "good", "taint": {}}, {}], "log": {}}));
}

#[test]
fn an_unknown_key_is_reported_with_the_known_keys() {
    let (_, problems) = yaml("shutdown: {zzz: 1}\n");
    assert_eq!(problems, ["shutdown.zzz: unknown key `zzz` (known: timeout, node) (from vk.yaml)"]);
}

#[test]
fn text_that_is_not_yaml_or_not_a_map_is_one_problem() {
    for text in ["a: [", "- a\n- b\n", "just text", "port: 1\nport: 2\n"] {
        let (_, problems) = yaml(text);
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert!(problems[0].starts_with("config: "), "{problems:?}");
        assert!(!problems[0].contains('\n'), "{problems:?}");
    }
}

#[test]
fn our_variables_win_over_those_of_go() {
    let (layer, problems) = env(&[
        ("KUBELET_PORT", "1"),
        ("VK_PORT", "2"),
        ("DEFAULTNODE_NAME", "old"),
        ("DEFAULT_NODE_NAME", "new"),
        ("VKUBELET_TAINT_KEY", "example.com/k"),
        ("VK_TAINT_EFFECT", "NoExecute"),
        ("VK_PROVIDER", ""),
        ("MASTER_URI", "https://a"),
    ]);
    assert_eq!(problems, Vec::<String>::new());
    let expected = serde_json::json!({
        "port": 2, "nodeName": "new", "apiServer": "https://a",
        "taint": {"key": "example.com/k", "effect": "NoExecute"}
    });
    assert_eq!(layer, expected);
}

#[test]
fn a_wrong_variable_is_named() {
    let (layer, problems) =
        env(&[("KUBELET_PORT", "x"), ("VKUBELET_TAINT_EFFECT", "Never"), ("VK_LABELS", "a")]);
    assert_eq!(layer, serde_json::json!({}));
    assert_eq!(problems.len(), 3, "{problems:#?}");
    for name in ["KUBELET_PORT", "VKUBELET_TAINT_EFFECT", "VK_LABELS"] {
        assert!(
            problems.iter().any(|line| line.ends_with(&format!("(from environment {name})"))),
            "{problems:#?}"
        );
    }
}

#[test]
fn a_variable_that_kubernetes_sets_for_a_service_is_not_a_port() {
    let (layer, problems) = env(&[("VK_PORT", "tcp://10.0.0.1:443"), ("KUBELET_PORT", "10300")]);
    assert_eq!((layer, problems), (serde_json::json!({"port": 10300}), vec![]));
}

#[test]
fn the_variables_of_tensile_kube_are_read() {
    let (layer, problems) = env(&[
        ("VKUBELET_NODE_LABEL", "example.com/pool:a"),
        ("VKUBELET_EXTERNAL_POD_IP", "203.0.113.7"),
        ("VKUBELET_POD_IP", "10.0.0.7"),
    ]);
    let expected = serde_json::json!({
        "labels": {"example.com/pool": "a"}, "externalIP": "203.0.113.7", "internalIP": "10.0.0.7"
    });
    assert_eq!((layer, problems), (expected, vec![]));
    let (_, problems) = env(&[("VKUBELET_NODE_LABEL", "pool")]);
    assert!(problems[0].ends_with("(from environment VKUBELET_NODE_LABEL)"), "{problems:?}");
    let (layer, _) = env(&[("VK_IGNORE_LABELS", "a, b,"), ("VK_CLIENT_KUBECONFIG", "/lower")]);
    assert_eq!(layer, serde_json::json!({"ignoreLabels": ["a", "b"], "clientKubeconfig": "/lower"}));
}

#[test]
fn layers_are_merged_key_by_key_but_not_within_a_providers_section() {
    let layer = |text: &str| Layer::from_yaml(text, "x").0;
    let layers = LayerStack {
        base: layer("provider: mock"),
        file: layer("provider: a\nlabels: {a: '1', b: '1'}\nproviderConfig: {x: 1}\n"),
        env: layer("labels: {b: '2', c: '2'}\nproviderConfig: {y: 2}\n"),
        flags: layer("labels: {c: '3'}\n"),
    };
    let merged = serde_json::to_value(layers.merged().unwrap()).unwrap();
    assert_eq!(merged["provider"], "a");
    assert_eq!(merged["labels"], serde_json::json!({"a": "1", "b": "2", "c": "3"}));
    assert_eq!(merged["providerConfig"], serde_json::json!({"y": 2}));
}

#[test]
fn only_true_and_false_are_booleans_and_numbers_are_not_labels() {
    assert_eq!(yaml("metricsAddr: off\nlabels: {a: no, b: y}\n").1, Vec::<String>::new());
    let (_, problems) = yaml("labels: {a: 1}\n");
    assert!(problems[0].starts_with("labels.a: ") && problems[0].contains("in quotes"), "{problems:?}");
}

proptest! {
    #[test]
    fn no_file_makes_it_panic_or_hang(
        text in "(nodes|taint|taints|labels|name|count|key|port|x|[-:,{}\\[\\] \n0-9'a]){0,40}"
    ) {
        let (layer, _) = Layer::from_yaml(&text, "x");
        // What is left is right.
        prop_assert!(Layer::checked(Value::Object(layer.0)).1.is_empty());
    }
}
