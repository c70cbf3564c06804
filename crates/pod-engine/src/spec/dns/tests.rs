use serde_json::{Value, json};

use super::*;
use crate::spec::tests::{RecordedEvents, pod, settings};

fn host() -> Dns {
    parse("nameserver 192.0.2.53\nsearch example.com\noptions rotate\n").unwrap()
}

fn made(mut spec: Value, settings: &Settings, host: &Dns) -> (Dns, Vec<String>) {
    spec["containers"] = json!([]);
    let (pod, told) = (pod(spec), RecordedEvents::default());
    let dns = pod_dns(&pod, pod.spec.as_ref().unwrap(), settings, host, &told.record());
    (dns, told.take())
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
        assert_eq!(parse(content), Ok(expected), "{content:?}");
    }
    assert_eq!(parse("#comment\nnameserver\nsearch"), Err("nameserver list is empty ".to_owned()));
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
        assert_eq!(made(spec.clone(), &settings(), &host()), (expected, Vec::new()), "{spec}");
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
    assert_eq!(made(spec, &settings(), &host()).0, expected);
}

#[test]
fn without_a_cluster_resolver_the_hosts_serves_and_it_is_told() {
    let settings = Settings { cluster_dns: Vec::new(), ..settings() };
    let (dns, told) = made(json!({}), &settings, &host());
    assert_eq!(dns, host());
    let expected = "MissingClusterDNS: pod: \"web_team(u-1)\". kubelet does not have ClusterDNS IP configured and cannot create Pod \
        using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    assert_eq!(told, [expected]);
    assert!(made(json!({ "dnsPolicy": "Default" }), &settings, &host()).1.is_empty());
}

#[test]
fn a_node_without_a_resolver_file_looks_up_nothing() {
    let mut settings = Settings { resolv_conf: "".into(), ..settings() };
    let default = json!({ "dnsPolicy": "Default" });
    settings.node_ips = vec!["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()];
    assert_eq!(made(default.clone(), &settings, &Dns::default()).0, dns(&["::1", "127.0.0.1"], &["."], &[]));
    settings.node_ips.clear();
    assert_eq!(made(default, &settings, &Dns::default()).0, dns(&["127.0.0.1"], &["."], &[]));
}

#[test]
fn what_resolvers_cannot_bear_is_left_out_and_told() {
    let spec = json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"] } });
    let (cut, told) = made(spec, &settings(), &host());
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
    assert_eq!(made(spec, &settings(), &host()).1, [expected]);
}

#[tokio::test]
async fn a_resolver_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resolv.conf");
    let settings = Settings { resolv_conf: path.clone(), ..settings() };
    let error = host_dns(&settings).await.unwrap_err();
    assert!(error.message().starts_with(&format!("open {}: ", path.display())), "{error}");
    std::fs::write(&path, "nameserver\n").unwrap();
    let message = "Encountered error while parsing resolv conf file. Error: nameserver list is empty ";
    assert_eq!(host_dns(&settings).await.unwrap_err().message(), message);
    std::fs::write(&path, "nameserver 192.0.2.53\n").unwrap();
    assert_eq!(host_dns(&settings).await.unwrap(), dns(&["192.0.2.53"], &[], &[]));
    let none = Settings { resolv_conf: "".into(), ..settings };
    assert_eq!(host_dns(&none).await.unwrap(), Dns::default());
}
