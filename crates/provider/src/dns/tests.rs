use std::cell::RefCell;

use serde_json::{Value, json};

use super::*;

/// The DNS of a node, without that of its host.
#[derive(Clone)]
struct Node {
    cluster_servers: Vec<IpAddr>,
    node_ips: Vec<IpAddr>,
}

fn node() -> Node {
    let cluster_servers = vec!["10.96.0.10".parse().unwrap()];
    Node { cluster_servers, node_ips: vec!["192.0.2.1".parse().unwrap()] }
}

fn host() -> Dns {
    Dns::parse("nameserver 192.0.2.53\nsearch example.com\noptions rotate\n").unwrap()
}

fn made(mut spec: Value, node: &Node, host: Option<&Dns>) -> (Dns, Vec<String>) {
    spec["containers"] = json!([]);
    let meta = json!({ "name": "web", "namespace": "team", "uid": "u-1" });
    let pod: Pod = serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap();
    let told = RefCell::new(Vec::new());
    let record = |_: EventKind, reason: &str, message: String| {
        told.borrow_mut().push(format!("{reason}: {message}"));
    };
    let node = NodeDns {
        cluster_servers: &node.cluster_servers,
        cluster_domain: "cluster.local",
        host,
        node_ips: &node.node_ips,
    };
    let dns = pod_dns(&pod, pod.spec.as_ref().unwrap(), &node, &record);
    (dns, told.into_inner())
}

fn dns(servers: &[&str], searches: &[&str], options: &[&str]) -> Dns {
    let own = |list: &[&str]| list.iter().map(|item| (*item).to_owned()).collect();
    Dns { servers: own(servers), searches: own(searches), options: own(options) }
}

#[test]
fn the_file_of_a_resolver_is_read_as_a_kubelet_reads_it() {
    for (content, expected) in [
        ("", dns(&[], &[], &[])),
        ("\t\n\t", dns(&[], &[], &[])),
        (" #comment\n#comment", dns(&[], &[], &[])),
        ("#comment\nnameserver 1.2.3.4\nsearch", dns(&["1.2.3.4"], &[], &[])),
        ("nameserver \t 1.2.3.4 #comment", dns(&["1.2.3.4"], &[], &[])),
        ("nameserver 1.2.3.4\nnameserver 5.6.7.8", dns(&["1.2.3.4", "5.6.7.8"], &[], &[])),
        ("search . foo", dns(&[], &["foo"], &[])),
        ("search foo. .  bar", dns(&[], &["foo", "bar"], &[])),
        ("search foo\nsearch bar", dns(&[], &["bar"], &[])),
        ("options ndots:1 ndots:5 attempts:2", dns(&[], &[], &["ndots:5", "attempts:2"])),
        ("options ndots:1 edns0\noptions ndots:5", dns(&[], &[], &["ndots:5", "edns0"])),
        ("domain example.com\nsortlist x", dns(&[], &[], &[])),
    ] {
        assert_eq!(Dns::parse(content), Ok(expected), "{content:?}");
    }
    assert_eq!(Dns::parse("#comment\nnameserver\nsearch"), Err("nameserver list is empty ".to_owned()));
}

#[test]
fn the_policy_chooses_between_the_cluster_and_the_host() {
    let cluster = dns(
        &["10.96.0.10"],
        &["team.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com"],
        &["ndots:5"],
    );
    let own = json!({ "nameservers": ["9.9.9.9"], "searches": ["a.b"], "options": [{ "name": "edns0" }] });
    for (spec, expected) in [
        (json!({}), cluster.clone()),
        (json!({ "dnsPolicy": "ClusterFirst" }), cluster.clone()),
        (json!({ "dnsPolicy": "ClusterFirst", "hostNetwork": true }), host()),
        (json!({ "dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true }), cluster),
        (json!({ "dnsPolicy": "Default" }), host()),
        (json!({ "dnsPolicy": "None" }), Dns::default()),
        (json!({ "dnsPolicy": "None", "dnsConfig": own }), dns(&["9.9.9.9"], &["a.b"], &["edns0"])),
    ] {
        assert_eq!(made(spec.clone(), &node(), Some(&host())), (expected, Vec::new()), "{spec}");
    }
}

#[test]
fn what_a_pod_says_itself_is_added_and_replaces_options_of_the_same_name() {
    let spec = json!({ "dnsConfig": {
        "nameservers": ["9.9.9.9", "10.96.0.10"],
        "searches": ["example.com", "more.example.com"],
        "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }, { "name": "empty", "value": "" }],
    } });
    let expected = dns(
        &["10.96.0.10", "9.9.9.9"],
        &["team.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com", "more.example.com"],
        &["ndots:2", "edns0", "empty"],
    );
    assert_eq!(made(spec, &node(), Some(&host())).0, expected);
}

#[test]
fn without_a_cluster_resolver_the_hosts_serves_and_it_is_told() {
    let alone = Node { cluster_servers: Vec::new(), ..node() };
    let (dns, told) = made(json!({}), &alone, Some(&host()));
    assert_eq!(dns, host());
    let expected = "MissingClusterDNS: pod: \"web_team(u-1)\". kubelet does not have ClusterDNS IP configured and cannot create Pod \
        using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    assert_eq!(told, [expected]);
    assert!(made(json!({ "dnsPolicy": "Default" }), &alone, Some(&host())).1.is_empty());
}

#[test]
fn a_node_without_a_resolver_file_looks_up_nothing() {
    let mut node = node();
    let default = json!({ "dnsPolicy": "Default" });
    node.node_ips = vec!["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
    assert_eq!(made(default.clone(), &node, None).0, dns(&["::1", "127.0.0.1"], &["."], &[]));
    node.node_ips.clear();
    assert_eq!(made(default, &node, None).0, dns(&["127.0.0.1"], &["."], &[]));
}

#[test]
fn what_resolvers_cannot_bear_is_left_out_and_told() {
    let spec = json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"] } });
    let (cut, told) = made(spec, &node(), Some(&host()));
    assert_eq!(cut.servers.len(), 3);
    let expected = "DNSConfigForming: Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line \
        is: 1.1.1.1 2.2.2.2 3.3.3.3";
    assert_eq!(told, [expected]);

    let mut many: Vec<String> = (0..33).map(|number| format!("d{number}")).collect();
    assert!(limit_searches(&mut many));
    assert_eq!(many.len(), 32);
    let mut long = vec!["a".repeat(254), "b".repeat(253)];
    assert!(limit_searches(&mut long));
    assert_eq!(long, ["b".repeat(253)]);
    // Eight of 253 with seven spaces are 2031; with one of 16 and a space 2048, which is allowed.
    let mut line = vec!["c".repeat(253); 8];
    line.push("d".repeat(16));
    assert!(!limit_searches(&mut line));
    line[8].push('d');
    assert!(limit_searches(&mut line));
    assert_eq!(line.len(), 8);
    let spec =
        json!({ "dnsPolicy": "None", "dnsConfig": { "searches": ["a".repeat(254), "ok.example.com"] } });
    let expected = "DNSConfigForming: Search Line limits were exceeded, some search paths have been omitted, the applied search line \
        is: ok.example.com";
    assert_eq!(made(spec, &node(), Some(&host())).1, [expected]);
}
