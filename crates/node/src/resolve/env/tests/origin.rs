//! Where values come from, and values that depend on an address that is not known yet.

use std::fs;

use super::*;

/// Every source of a variable.
fn every_source() -> Value {
    json!({
        "envFrom": [
            {"configMapRef": {"name": "two"}},
            {"prefix": "S_", "secretRef": {"name": "password"}},
        ],
        "env": [
            {"name": "LITERAL", "value": "a"},
            {"name": "EMPTY"},
            {"name": "FIELD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "AMOUNT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
            {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "FOO"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "password", "key": "PASSWORD"}}},
        ],
    })
}

/// The origin and the missing field of every own variable, by name.
fn marks(inputs: &ContainerInputs) -> BTreeMap<&str, (Origin, Option<Deferred>)> {
    let marked = inputs.env.iter().map(|variable| {
        let mark = (variable.origin, variable.deferred.clone());
        (variable.name.as_str(), mark)
    });
    marked.collect()
}

/// The inputs when the pod has these addresses.
fn with_addresses(pod: &Pod, ips: &[&str]) -> ContainerInputs {
    let pod_ips = ips.iter().map(|ip| ip.parse().expect("an address")).collect();
    let facts = Facts { pod_ips, ..Facts::default() };
    super::super::container(pod, "c", &facts, &node(), &objects()).expect("an environment").0
}

fn deferred(field: &str, whole: bool) -> Deferred {
    Deferred { field: field.to_owned(), whole }
}

#[test]
fn every_source_gives_its_origin() {
    let (inputs, _) = resolve(&pod(every_source())).expect("an environment");
    let found = marks(&inputs);
    for (name, origin) in [
        ("FOO", Origin::ConfigMap),
        ("S_USER", Origin::Secret),
        ("LITERAL", Origin::Literal),
        ("EMPTY", Origin::Literal),
        ("FIELD", Origin::Field),
        ("IP", Origin::Field),
        ("AMOUNT", Origin::Field),
        ("MAP", Origin::ConfigMap),
        ("SECRET", Origin::Secret),
        ("KUBERNETES_SERVICE_HOST", Origin::Service),
    ] {
        assert_eq!(found[name], (origin, None), "{name}");
    }
}

#[test]
fn a_file_of_a_container_is_its_own_origin() {
    let volume = tempfile::tempdir().expect("a folder");
    fs::write(volume.path().join("env"), "KEY='value'\n").expect("a file");
    let source = json!({"fileKeyRef": {"volumeName": "v", "path": "env", "key": "KEY"}});
    let pod = pod(json!({"env": [{"name": "A", "valueFrom": source}]}));
    let volumes = BTreeMap::from([("v".to_owned(), volume.path().to_owned())]);
    let facts = Facts { volumes, ..Facts::default() };
    let (inputs, _) =
        super::super::container(&pod, "c", &facts, &node(), &objects()).expect("an environment");
    assert_eq!(marks(&inputs)["A"], (Origin::File, None));
}

#[test]
fn an_expanded_value_is_as_sensitive_as_what_is_in_it() {
    let container = json!({
        "envFrom": [{"configMapRef": {"name": "one"}}, {"secretRef": {"name": "password"}}],
        "env": [
            {"name": "PLAIN", "value": "x $(NONE) $$(PASSWORD)"},
            {"name": "URL", "value": "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"},
            {"name": "MAP", "value": "$(FOO) at $(URL)"},
            {"name": "LOGIN", "value": "$(MAP) as $(USER)"},
            {"name": "THROUGH", "value": "-$(LOGIN)-"},
            {"name": "PASSWORD", "value": "of everyone"},
            {"name": "AFTER", "value": "$(PASSWORD)"},
        ],
    });
    let (inputs, _) = resolve(&pod(container)).expect("an environment");
    let found = marks(&inputs);
    for (name, origin) in [
        ("PLAIN", Origin::Literal),
        ("URL", Origin::Service),
        ("MAP", Origin::ConfigMap),
        ("LOGIN", Origin::Secret),
        ("THROUGH", Origin::Secret),
        ("PASSWORD", Origin::Literal),
        ("AFTER", Origin::Literal),
    ] {
        assert_eq!(found[name].0, origin, "{name}");
    }
}

#[test]
fn command_and_arguments_each_have_the_origin_of_their_most_sensitive_word() {
    let container = json!({
        "command": ["serve", "--color=$(FOO)", "plain"],
        "args": ["--user=$(USER)", "$(FOO)", "last"],
        "envFrom": [{"configMapRef": {"name": "one"}}, {"secretRef": {"name": "password"}}],
    });
    let (inputs, _) = resolve(&pod(container)).expect("an environment");
    let line = |words: [&str; 3], origin| Some(CommandLine { origin, ..CommandLine::literal(words) });
    assert_eq!(inputs.command, line(["serve", "--color=one-foo", "plain"], Origin::ConfigMap));
    assert_eq!(inputs.args, line(["--user=root", "one-foo", "last"], Origin::Secret));
    let (inputs, _) = resolve(&pod(json!({"command": ["a", "$(NONE)", "b"]}))).expect("an environment");
    assert_eq!(inputs.command, line(["a", "$(NONE)", "b"], Origin::Literal));
}

/// Each of the fields that have an address, and values with it.
fn addressed() -> Pod {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    pod(json!({
        "command": ["serve", "$(USER)"],
        "args": ["$(IP)"],
        "envFrom": [{"secretRef": {"name": "password"}}],
        "env": [
            field("IP", "status.podIP"),
            field("IPS", "status.podIPs"),
            field("HOST", "status.hostIP"),
            {"name": "ALIAS", "value": "$(IP)"},
            {"name": "ALIAS2", "value": "$(ALIAS)"},
            {"name": "URL", "value": "http://$(IP):80"},
            {"name": "THROUGH", "value": "$(URL)"},
            {"name": "TWO", "value": "$(IPS)$(IP)"},
            {"name": "LOGIN", "value": "$(USER)@$(IP)"},
            {"name": "PLAIN", "value": "$$(IP) $(NONE)"},
        ],
    }))
}

#[test]
fn values_that_need_an_unknown_address_are_deferred() {
    let inputs = with_addresses(&addressed(), &[]);
    let found = marks(&inputs);
    for (name, missing) in [
        ("IP", Some(deferred("status.podIP", true))),
        ("IPS", Some(deferred("status.podIPs", true))),
        // The node's address stands in for the host's.
        ("HOST", None),
        ("ALIAS", Some(deferred("status.podIP", true))),
        ("ALIAS2", Some(deferred("status.podIP", true))),
        ("URL", Some(deferred("status.podIP", false))),
        ("THROUGH", Some(deferred("status.podIP", false))),
        ("TWO", Some(deferred("status.podIPs", false))),
        ("LOGIN", Some(deferred("status.podIP", false))),
        ("PLAIN", None),
        ("USER", None),
    ] {
        assert_eq!(found[name].1, missing, "{name}");
    }
    assert_eq!(found["LOGIN"].0, Origin::Secret);
    assert_eq!(found["URL"].0, Origin::Field);
    let value =
        |name: &str| inputs.pairs().into_iter().find(|(known, _)| known == name).map(|(_, value)| value);
    assert_eq!(value("IP").as_deref(), Some(""));
    assert_eq!(value("URL").as_deref(), Some("http://:80"));
}

#[test]
fn a_word_that_needs_an_unknown_address_defers_its_line() {
    let inputs = with_addresses(&addressed(), &[]);
    let (command, args) = (inputs.command.expect("a command"), inputs.args.expect("arguments"));
    assert_eq!((command.deferred, command.origin), (None, Origin::Secret));
    assert_eq!(args.deferred, Some(deferred("status.podIP", false)), "a line is never the field alone");
}

#[test]
fn nothing_is_deferred_once_the_addresses_are_known() {
    for (ips, all) in [
        (&["10.1.0.5", "fd00::5"][..], "10.1.0.5,fd00::5"),
        (&["10.1.0.5"], "10.1.0.5"),
        // A node with IPv4 and a pod with IPv6 alone: what is known is all there is.
        (&["fd00::5"], "fd00::5"),
    ] {
        let inputs = with_addresses(&addressed(), ips);
        assert!(inputs.env.iter().all(|variable| variable.deferred.is_none()), "{ips:?}: {inputs:?}");
        assert_eq!(inputs.args.as_ref().and_then(|args| args.deferred.clone()), None);
        assert!(inputs.pairs().contains(&("IPS".to_owned(), all.to_owned())), "{ips:?}");
        assert_eq!(inputs.args.expect("arguments").words, [ips[0]]);
    }
}

#[test]
fn host_addresses_are_deferred_if_even_the_node_has_none() {
    let nowhere = NodeFacts { ips: Vec::new(), ..node() };
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut pod = pod(json!({"env": [
        field("HOST", "status.hostIP"),
        field("HOSTS", "status.hostIPs"),
        field("IP", "status.podIP"),
    ]}));
    // With the host's network the pod has the host's addresses.
    pod.spec.as_mut().expect("a spec").host_network = Some(true);
    let resolved = |facts: &Facts| {
        super::super::container(&pod, "c", facts, &nowhere, &objects()).expect("an environment").0
    };
    let inputs = resolved(&Facts::default());
    let found = marks(&inputs);
    assert_eq!(found["HOST"].1, Some(deferred("status.hostIP", true)));
    assert_eq!(found["HOSTS"].1, Some(deferred("status.hostIPs", true)));
    assert_eq!(found["IP"].1, Some(deferred("status.podIP", true)));
    let host_ips = vec!["192.0.2.7".parse().expect("an address")];
    let inputs = resolved(&Facts { host_ips, ..Facts::default() });
    assert!(inputs.env.iter().all(|variable| variable.deferred.is_none()), "{inputs:?}");
    assert!(inputs.pairs().contains(&("IP".to_owned(), "192.0.2.7".to_owned())));
}

#[test]
fn debug_output_shows_no_secret() {
    let shown = format!("{:?}", objects());
    assert!(shown.contains("password") && !shown.contains("hunter2"), "{shown}");
    let bytes = format!("{:?}", b"hunter2");
    assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
}
