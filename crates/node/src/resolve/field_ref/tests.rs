use serde_json::json;
use vk_provider::error::Kind;

use super::*;

fn pod() -> Pod {
    let pod = json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u-1",
            "labels": {"app": "web", "example.com/tier": "front"},
            "annotations": {"note": "a \"b\"\n\tc\\", "Example.com/Mixed": "x"},
        },
        "spec": {"containers": [], "nodeName": "node-1", "serviceAccountName": "clerk", "restartPolicy": "Never"},
        "status": {"phase": "Pending"},
    });
    serde_json::from_value(pod).expect("a pod")
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

fn facts() -> Facts {
    Facts {
        pod_ips: ips(&["fd00::5", "10.1.0.5", "10.1.0.6"]),
        host_ips: ips(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
        ..Facts::default()
    }
}

fn node(addresses: &[&str]) -> NodeFacts {
    NodeFacts { ips: ips(addresses), ..NodeFacts::default() }
}

fn field(path: &str) -> ObjectFieldSelector {
    ObjectFieldSelector { field_path: path.to_owned(), api_version: Some("v1".to_owned()) }
}

#[test]
fn every_supported_path_of_a_variable_has_a_value() {
    let annotations = "Example.com/Mixed=\"x\"\nnote=\"a \\\"b\\\"\\n\\tc\\\\\"";
    let table = [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u-1"),
        ("metadata.labels", "app=\"web\"\nexample.com/tier=\"front\""),
        ("metadata.annotations", annotations),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['example.com/tier']", "front"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['note']", "a \"b\"\n\tc\\"),
        ("metadata.annotations['Example.com/Mixed']", "x"),
        ("spec.nodeName", "node-1"),
        ("spec.host", "node-1"),
        ("spec.serviceAccountName", "clerk"),
        ("status.hostIP", "192.0.2.1"),
        ("status.hostIPs", "192.0.2.1,2001:db8::1"),
        ("status.podIP", "10.1.0.5"),
        ("status.podIPs", "10.1.0.5,fd00::5"),
    ];
    for (path, wanted) in table {
        let found = variable(&field(path), &pod(), &facts(), &node(&["192.0.2.1"])).expect(path);
        assert_eq!(found.as_deref(), Some(wanted), "{path}");
    }
}

#[test]
fn volumes_only_support_metadata() {
    let table = [
        ("metadata.name", Some("web")),
        ("metadata.namespace", Some("shop")),
        ("metadata.uid", Some("u-1")),
        ("metadata.labels", Some("app=\"web\"\nexample.com/tier=\"front\"")),
        ("metadata.labels['app']", Some("web")),
        ("metadata.annotations['note']", Some("a \"b\"\n\tc\\")),
        ("spec.nodeName", None),
        ("spec.serviceAccountName", None),
        ("status.hostIP", None),
        ("status.podIP", None),
        ("status.podIPs", None),
    ];
    for (path, wanted) in table {
        let found = file(&field(path), &pod());
        if let Some(wanted) = wanted {
            assert_eq!(found.expect(path), wanted, "{path}");
        } else {
            let error = found.expect_err(path);
            assert_eq!(error.message(), format!("unsupported fieldPath: {path}"));
            assert_eq!(error.kind(), &Kind::Invalid);
        }
    }
}

#[test]
fn invalid_paths_are_rejected_with_the_kubelets_message() {
    let name = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let table = [
        ("spec.restartPolicy", "unsupported fieldPath: spec.restartPolicy".to_owned()),
        ("spec.schedulerName", "unsupported fieldPath: spec.schedulerName".to_owned()),
        ("status.phase", "unsupported fieldPath: status.phase".to_owned()),
        ("metadata.generateName", "field label not supported: metadata.generateName".to_owned()),
        ("", "field label not supported: ".to_owned()),
        ("metadata.name['a']", "field label does not support subscript: metadata.name['a']".to_owned()),
        ("['a']", "field label not supported: ['a']".to_owned()),
        (
            "metadata.labels['']",
            format!("invalid key subscript in metadata.labels['']: name part must be non-empty;{name}"),
        ),
        ("metadata.labels['a b']", format!("invalid key subscript in metadata.labels['a b']: {name}")),
        (
            "metadata.labels['/a']",
            "invalid key subscript in metadata.labels['/a']: prefix part must be non-empty".to_owned(),
        ),
        (
            "metadata.labels['Example.com/a']",
            "invalid key subscript in metadata.labels['Example.com/a']: prefix part a lowercase RFC 1123 subdomain must \
             consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
             character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        ),
    ];
    for (path, wanted) in table {
        let error = variable(&field(path), &pod(), &facts(), &node(&[])).expect_err(path);
        assert_eq!(error.message(), wanted, "{path}");
        assert_eq!(error.kind(), &Kind::Invalid);
    }
}

#[test]
fn one_address_per_family_with_the_nodes_family_first() {
    let podips = |node_ips: &[&str], pod_ips: &[&str]| {
        let facts = Facts { pod_ips: ips(pod_ips), ..Facts::default() };
        variable(&field("status.podIPs"), &pod(), &facts, &node(node_ips))
            .expect("addresses")
            .unwrap_or_default()
    };
    let both = ["10.1.0.5", "fd00::5", "fd00::6"];
    assert_eq!(podips(&[], &both), "10.1.0.5,fd00::5");
    assert_eq!(podips(&["192.0.2.1"], &both), "10.1.0.5,fd00::5");
    assert_eq!(podips(&["2001:db8::1"], &both), "fd00::5,10.1.0.5");
    assert_eq!(podips(&["2001:db8::1"], &["10.1.0.5"]), "10.1.0.5");
    assert_eq!(podips(&["192.0.2.1"], &["::ffff:10.1.0.5"]), "10.1.0.5");
}

#[test]
fn an_address_is_missing_until_it_is_known() {
    let found = |path: &str, facts: &Facts, node: &NodeFacts| {
        variable(&field(path), &pod(), facts, node).expect("an address that is not known is no error")
    };
    let nothing = Facts::default();
    for path in ["status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"] {
        assert_eq!(found(path, &nothing, &node(&[])), None, "{path}");
    }
    // One family is enough: nothing says that the other one will come.
    let one = Facts { pod_ips: ips(&["fd00::5"]), ..Facts::default() };
    assert_eq!(found("status.podIP", &one, &node(&["192.0.2.1"])).as_deref(), Some("fd00::5"));
    assert_eq!(found("status.podIPs", &one, &node(&["192.0.2.1"])).as_deref(), Some("fd00::5"));
}

#[test]
fn host_addresses_default_to_the_nodes() {
    let hostips =
        |node_ips: &[&str]| variable(&field("status.hostIPs"), &pod(), &Facts::default(), &node(node_ips));
    let found = hostips(&["2001:db8::1", "192.0.2.1"]).expect("addresses");
    assert_eq!(found.as_deref(), Some("2001:db8::1,192.0.2.1"));
}

#[test]
fn a_host_network_pod_has_the_hosts_addresses() {
    let mut pod = pod();
    pod.spec.as_mut().expect("a spec").host_network = Some(true);
    let found = variable(&field("status.podIP"), &pod, &Facts::default(), &node(&["192.0.2.1"]));
    assert_eq!(found.expect("an address").as_deref(), Some("192.0.2.1"));
}

#[test]
fn values_are_quoted_like_in_go() {
    let quoted = |text: &str| {
        let mut quoted = String::new();
        quote(&mut quoted, text);
        quoted
    };
    let table = [
        ("", r#""""#),
        ("plain 'text'", r#""plain 'text'""#),
        ("\"\\", r#""\"\\""#),
        ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
        ("\0\x1f\x7f", r#""\x00\x1f\x7f""#),
        ("äß日本\u{1f600}", "\"äß日本\u{1f600}\""),
        ("e\u{301}\u{fffd}", "\"e\u{301}\u{fffd}\""),
        ("\u{85}\u{a0}\u{ad}\u{200b}\u{2028}\u{feff}", r#""\u0085\u00a0\u00ad\u200b\u2028\ufeff""#),
        ("\u{e000}\u{f0000}\u{10ffff}", r#""\ue000\U000f0000\U0010ffff""#),
    ];
    for (text, wanted) in table {
        assert_eq!(quoted(text), wanted, "{text:?}");
    }
}
