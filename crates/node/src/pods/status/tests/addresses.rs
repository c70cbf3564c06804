//! Addresses: the API server stores at most one of each family, and refuses the whole status otherwise.

use super::*;

fn ips(status: &PodStatus) -> (Vec<&str>, Vec<&str>) {
    let pods = status.pod_ips.iter().flatten().map(|pod| pod.ip.as_str()).collect();
    (pods, status.host_ips.iter().flatten().map(|host| host.ip.as_str()).collect())
}

#[test]
fn of_two_addresses_of_one_family_the_first_is_kept_and_the_other_is_named() {
    let said = report(json!({
        "phase": "Running", "podIP": "10.1.0.5", "containerStatuses": [running("a"), running("b")],
        "podIPs": [{"ip": "10.1.0.5"}, {"ip": "10.2.0.5"}, {"ip": "fd00::5"}, {"ip": "::ffff:10.3.0.5"}],
        "hostIP": "fd00::1", "hostIPs": [{"ip": "fd00::1"}, {"ip": "fd00::2"}, {"ip": "10.0.0.7"}],
    }));
    let composed = compose(&web("Always", json!({})), &said, &context());
    assert_eq!(ips(&composed.status), (vec!["10.1.0.5", "fd00::5"], vec!["fd00::1", "10.0.0.7"]));
    assert_eq!(composed.status.pod_ip.as_deref(), Some("10.1.0.5"));
    assert_eq!(composed.status.host_ip.as_deref(), Some("fd00::1"));
    for dropped in ["10.2.0.5", "::ffff:10.3.0.5", "fd00::2"] {
        assert!(
            composed.refused.iter().any(|text| text.contains(dropped)),
            "{dropped}: {:?}",
            composed.refused
        );
    }
    assert_eq!(composed.refused.len(), 3, "{:?}", composed.refused);
}

#[test]
fn of_the_nodes_addresses_one_of_each_family_is_taken() {
    let host_ips = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(str::to_owned).to_vec();
    let said = report(json!({"phase": "Running", "podIPs": [{"ip": "10.1.0.5"}]}));
    let composed = compose(&web("Always", json!({})), &said, &StatusContext { host_ips, ..context() });
    assert_eq!(ips(&composed.status), (vec!["10.1.0.5"], vec!["10.0.0.1", "fd00::1"]));
    assert_eq!(composed.refused, Vec::<String>::new(), "that is no fault of the provider");
}
