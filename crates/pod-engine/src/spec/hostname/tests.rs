use serde_json::{Value, json};

use super::*;
use crate::spec::tests::pod;

fn named(name: &str, mut spec: Value) -> Pod {
    spec["containers"] = json!([]);
    let mut pod = pod(spec);
    pod.metadata.name = Some(name.to_owned());
    pod
}

#[test]
fn a_host_is_named_by_the_spec_or_the_pod_and_never_too_long() {
    let long = "a".repeat(70);
    let dashed = format!("{}-.-{}", "b".repeat(61), "c".repeat(10));
    for (pod_name, spec, name, domain) in [
        ("web", json!({}), "web".to_owned(), ""),
        ("web", json!({ "hostname": "" }), "web".to_owned(), ""),
        ("web", json!({ "hostname": "me" }), "me".to_owned(), ""),
        ("web", json!({ "hostname": "me", "subdomain": "s" }), "me".to_owned(), "s.team.svc.cluster.local"),
        ("web", json!({ "subdomain": "s" }), "web".to_owned(), "s.team.svc.cluster.local"),
        (&long, json!({}), "a".repeat(63), ""),
        (&dashed, json!({}), "b".repeat(61), ""),
        (
            "web",
            json!({ "hostnameOverride": "a.example.com", "hostname": "me", "subdomain": "s" }),
            "a.example.com".to_owned(),
            "",
        ),
    ] {
        let found = hostname(&named(pod_name, spec), "cluster.local").unwrap();
        assert_eq!(found, (name, domain.to_owned()));
    }
}

#[test]
fn names_that_are_no_names_are_refused_with_the_rule() {
    let wrong =
        |spec: Value| hostname(&named("web", spec), "cluster.local").unwrap_err().message().to_owned();
    assert_eq!(
        wrong(json!({ "hostname": "a.b" })),
        "pod Hostname \"a.b\" is not a valid DNS label: must not contain dots"
    );
    let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
        with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    assert_eq!(
        wrong(json!({ "hostname": "A_" })),
        format!("pod Hostname \"A_\" is not a valid DNS label: {rule}")
    );
    assert_eq!(
        wrong(json!({ "subdomain": "-s" })),
        format!("pod Subdomain \"-s\" is not a valid DNS label: {rule}")
    );
    assert_eq!(
        wrong(json!({ "hostname": "a".repeat(64) })),
        format!("pod Hostname {:?} is not a valid DNS label: must be no more than 63 bytes", "a".repeat(64))
    );
    assert!(
        wrong(json!({ "hostnameOverride": "a..b" }))
            .starts_with("pod HostnameOverride \"a..b\" is not a valid DNS subdomain: ")
    );
}

#[test]
fn the_kernel_is_told_the_domain_where_the_pod_asks_for_it() {
    let name = |domain: &str, with| kernel_hostname("web".to_owned(), domain, with);
    assert_eq!(name("s.team.svc.cluster.local", false).unwrap(), "web");
    assert_eq!(name("s.team.svc.cluster.local", true).unwrap(), "web.s.team.svc.cluster.local");
    assert_eq!(name("", true).unwrap(), "web");
    let domain = "d".repeat(60);
    assert_eq!(name(&domain, true).unwrap().len(), 64);
    let domain = "d".repeat(61);
    assert_eq!(
        name(&domain, true).unwrap_err().message(),
        format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN web.{domain} is too long (64 characters is the max, \
             65 characters requested)"
        )
    );
}
