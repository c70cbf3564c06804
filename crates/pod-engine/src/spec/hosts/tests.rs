use serde_json::json;

use super::*;
use crate::spec::tests::pod;

fn ips(ips: &[&str]) -> Vec<IpAddr> {
    ips.iter().map(|ip| ip.parse().unwrap()).collect()
}

#[test]
fn a_pod_finds_itself_and_its_aliases() {
    let pod = pod(json!({
        "hostname": "foo", "subdomain": "sub", "containers": [],
        "hostAliases": [{ "ip": "198.51.100.1", "hostnames": ["a", "b"] }, { "ip": "2001:db8::9", "hostnames": ["c"] }],
    }));
    let content = hosts(&pod, "cluster.local", &ips(&["203.0.113.1", "2001:db8::1"]), "unused").unwrap();
    let expected = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
        fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
        203.0.113.1\tfoo.sub.team.svc.cluster.local\tfoo\n2001:db8::1\tfoo.sub.team.svc.cluster.local\tfoo\n\
        \n# Entries added by HostAliases.\n198.51.100.1\ta\tb\n2001:db8::9\tc\n";
    assert_eq!(content, expected);
}

#[test]
fn without_a_subdomain_the_name_stands_alone() {
    let content =
        hosts(&pod(json!({ "containers": [] })), "cluster.local", &ips(&["203.0.113.1"]), "").unwrap();
    assert!(content.ends_with("fe00::2\tip6-allrouters\n203.0.113.1\tweb\n"), "{content}");
}

#[test]
fn in_the_hosts_network_it_is_the_hosts_file() {
    let with_aliases = pod(json!({
        "hostNetwork": true, "containers": [], "hostAliases": [{ "ip": "198.51.100.1", "hostnames": ["a"] }],
    }));
    let content = hosts(&with_aliases, "cluster.local", &[], "127.0.0.1\tlocalhost\n").unwrap();
    let expected = "# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n\
        \n# Entries added by HostAliases.\n198.51.100.1\ta\n";
    assert_eq!(content, expected);
}

#[test]
fn a_hosts_file_is_mounted_as_soon_as_there_is_an_address() {
    let own = pod(json!({ "containers": [] }));
    let host = pod(json!({ "containers": [], "hostNetwork": true }));
    assert!(!mounts_hosts(&own, &[]));
    assert!(mounts_hosts(&own, &ips(&["203.0.113.1"])));
    assert!(mounts_hosts(&host, &[]));
}
