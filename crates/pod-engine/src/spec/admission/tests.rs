use serde_json::{Value, json};

use super::*;
use crate::spec::tests::pod;

fn refusal(mut spec: Value, features: &HostFeatures) -> Option<String> {
    if spec["containers"].is_null() {
        spec["containers"] = json!([{ "name": "c" }]);
    }
    admit(&pod(spec), features).err().map(|trouble| format!("{}: {}", trouble.reason, trouble.message))
}

fn sysctl(name: &str, mut spec: Value) -> Option<String> {
    spec["securityContext"] = json!({ "sysctls": [{ "name": name, "value": "1" }] });
    refusal(spec, &HostFeatures::default())
}

#[test]
fn kernel_settings_that_reach_beyond_the_pod_are_refused() {
    assert_eq!(sysctl("net.ipv4.tcp_syncookies", json!({})), None);
    assert_eq!(sysctl("net/ipv4/tcp_syncookies", json!({})), None);
    assert_eq!(sysctl("kernel.shm_rmid_forced", json!({ "hostNetwork": true })), None);
    let unsafe_one = "SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted";
    assert_eq!(sysctl("kernel.msgmax", json!({})).as_deref(), Some(unsafe_one));
    let network =
        "SysctlForbidden: forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled";
    assert_eq!(sysctl("net.ipv4.tcp_syncookies", json!({ "hostNetwork": true })).as_deref(), Some(network));
    let memory =
        "SysctlForbidden: forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host IPC enabled";
    assert_eq!(sysctl("kernel.shm_rmid_forced", json!({ "hostIPC": true })).as_deref(), Some(memory));
}

#[test]
fn a_profile_that_the_machine_cannot_enforce_is_refused() {
    let (with, without) =
        (HostFeatures { apparmor: true, ..HostFeatures::default() }, HostFeatures::default());
    let spec = |profile: Value| json!({ "containers": [{ "name": "c", "securityContext": { "appArmorProfile": profile } }] });
    let local = spec(json!({ "type": "Localhost", "localhostProfile": "p" }));
    let refused = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert_eq!(refusal(local.clone(), &with), None);
    assert_eq!(refusal(local.clone(), &without).as_deref(), Some(refused));
    assert_eq!(refusal(spec(json!({ "type": "Unconfined" })), &without), None);
    let shared = json!({ "securityContext": { "appArmorProfile": { "type": "RuntimeDefault" } } });
    assert_eq!(refusal(shared.clone(), &with), None);
    let mut overruled = spec(json!({ "type": "Unconfined" }));
    overruled["securityContext"] = shared["securityContext"].clone();
    for spec in [shared, overruled] {
        assert_eq!(refusal(spec, &without).as_deref(), Some(refused));
    }
    let empty = "AppArmor: Cannot enforce AppArmor: invalid empty AppArmor profile name";
    assert_eq!(
        refusal(spec(json!({ "type": "Localhost", "localhostProfile": " " })), &with).as_deref(),
        Some(empty)
    );
    // A running pod is not rejected.
    let mut running = pod(local);
    running.status = serde_json::from_value(json!({ "phase": "Running" })).unwrap();
    assert!(admit(&running, &without).is_ok());
}

#[test]
fn kernel_settings_are_written_with_dots() {
    for (name, expected) in [
        ("net.ipv4.tcp_syncookies", "net.ipv4.tcp_syncookies"),
        ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("", ""),
    ] {
        assert_eq!(dotted(name), expected);
    }
}
