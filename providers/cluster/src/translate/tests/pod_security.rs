//! What the Pod Security Standards refuse. `tests/it/pod_security.rs` compares the same with the admission of a real API server.

use super::*;
use crate::translate::pod_security::check;

/// A pod that meets the restricted level.
fn restricted() -> Value {
    json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "web", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        }}],
    })
}

fn violations(spec: Value, level: PodSecurity) -> String {
    let upper = pod(spec);
    check(&upper.metadata, upper.spec.as_ref().unwrap(), level)
        .map_or_else(|why| why.to_string(), |()| String::new())
}

#[test]
fn host_access_is_copied_or_rejected() {
    let taken = json!({
        "hostNetwork": true, "hostPID": true, "hostIPC": true,
        "securityContext": {"windowsOptions": {"hostProcess": true}, "sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
        "volumes": [{"name": "logs", "hostPath": {"path": "/var/log"}}],
        "containers": [
            {"name": "web", "securityContext": {"privileged": true}, "ports": [{"containerPort": 80, "hostPort": 8080}]},
            {"name": "able", "securityContext": {"capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}, "procMount": "Unmasked"}},
            {"name": "open", "securityContext": {
                "seccompProfile": {"type": "Unconfined"}, "appArmorProfile": {"type": "Unconfined"},
                "seLinuxOptions": {"type": "spc_t"},
            }},
            {"name": "probe", "livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}},
        ],
        "initContainers": [{"name": "init", "securityContext": {"windowsOptions": {"hostProcess": true}}}],
    });
    let mut upper = pod(taken.clone());
    let apparmor = "container.apparmor.security.beta.kubernetes.io/web";
    annotate(&mut upper, apparmor, "unconfined");
    let lower = spec_by(&upper, &permissive());
    for (field, value) in taken.as_object().unwrap() {
        assert_eq!(lower[field], *value);
    }
    let why = refused(&upper, &TranslationPolicy::default());
    for words in [
        "spec.hostNetwork",
        "spec.hostPID",
        "spec.hostIPC",
        "spec.securityContext.windowsOptions.hostProcess",
        "spec.securityContext.sysctls (kernel.msgmax)",
        "volume logs (hostPath /var/log)",
        "container web (privileged)",
        "container web (hostPort 8080)",
        "container able (capability SYS_ADMIN)",
        "container able (procMount Unmasked)",
        "container open (seccompProfile Unconfined)",
        "container open (appArmorProfile Unconfined)",
        "container open (seLinuxOptions.type)",
        "container probe (probe or hook of host 169.254.169.254)",
        "container init (hostProcess)",
        apparmor,
        "hostAccess: false",
    ] {
        assert!(why.contains(words), "{words} in {why}");
    }
    assert!(!why.contains("CHOWN"), "{why}");
    below(&pod(
        json!({"hostNetwork": false, "containers": [{"name": "web", "ports": [{"containerPort": 1}]}]}),
    ));
}

#[test]
fn the_restricted_level_demands_what_pods_can_do_without() {
    assert_eq!(violations(restricted(), PodSecurity::Restricted), "");
    assert_eq!(violations(json!({}), PodSecurity::Baseline), "");
    let why = violations(json!({}), PodSecurity::Restricted);
    for words in [
        "runAsNonRoot",
        "allowPrivilegeEscalation",
        "seccompProfile",
        "dropped: ALL",
        "podSecurity: restricted",
    ] {
        assert!(why.contains(words), "{words} in {why}");
    }
    for (path, value, words) in [
        ("/securityContext/runAsNonRoot", json!(false), "runAsNonRoot"),
        ("/securityContext/runAsUser", json!(0), "runAsUser (0)"),
        ("/containers/0/securityContext/runAsUser", json!(0), "runAsUser 0"),
        ("/containers/0/securityContext/capabilities/add", json!(["CHOWN"]), "capability CHOWN"),
        ("/volumes", json!([{"name": "v", "nfs": {"path": "/", "server": "s"}}]), "volume v (nfs)"),
    ] {
        let mut spec = restricted();
        let (parent, field) = path.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value;
        assert_eq!(violations(spec.clone(), PodSecurity::Baseline), "", "{path}");
        let why = violations(spec, PodSecurity::Restricted);
        assert!(why.contains(words), "{words} in {why}");
    }
}
