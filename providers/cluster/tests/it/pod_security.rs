//! Our Pod Security Standards against the admission of a real API server: what it refuses, we refuse.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_kube::{Client, Kind, Metrics, Objects};
use vk_provider_cluster::{
    names::OwnerId,
    translate::{AllowedChoices, ClusterClasses, PodSecurity, TranslationPolicy, translate},
};
use vk_testing::{ControlPlane, eventually};

/// Capabilities that a container may add, and some that it may not.
const CAPABILITIES: [&str; 18] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "NET_ADMIN",
    "NET_RAW",
    "SYS_ADMIN",
    "SYS_PTRACE",
    "ALL",
];
/// Sysctls that a pod may set, and some that it may not.
const SYSCTLS: [&str; 15] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
    "kernel.msgmax",
    "net.core.somaxconn",
    "net.ipv4.ip_forward",
];

/// A pod that meets the restricted level.
fn pod() -> Value {
    json!({
        "metadata": {"name": "p"},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "web", "image": "i", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            }}],
            "initContainers": [{"name": "init", "image": "i", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            }}],
        },
    })
}

/// Changes of that pod: a JSON pointer and a value each.
fn changes() -> Vec<(&'static str, Value)> {
    let context = "/spec/containers/0/securityContext";
    let mut all = vec![
        ("/spec/hostNetwork", json!(true)),
        ("/spec/hostPID", json!(true)),
        ("/spec/hostIPC", json!(true)),
        ("/spec/containers/0/ports", json!([{"containerPort": 80, "hostPort": 8080}])),
        ("/spec/containers/0/ports", json!([{"containerPort": 80}])),
        ("/spec/initContainers/0/securityContext", json!({"privileged": true})),
        ("/spec/initContainers/0/securityContext/capabilities", json!({"add": ["NET_RAW"], "drop": ["ALL"]})),
        ("/spec/containers/0/livenessProbe", json!({"tcpSocket": {"host": "10.0.0.1", "port": 1}})),
        ("/spec/containers/0/readinessProbe", json!({"httpGet": {"host": "10.0.0.1", "port": 1}})),
        ("/spec/containers/0/lifecycle", json!({"postStart": {"httpGet": {"host": "10.0.0.1", "port": 1}}})),
        ("/spec/containers/0/lifecycle", json!({"preStop": {"httpGet": {"port": 1}}})),
        (
            "/metadata/annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/web": "unconfined"}),
        ),
        (
            "/metadata/annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/web": "runtime/default"}),
        ),
        ("/spec/securityContext/runAsNonRoot", Value::Null),
        ("/spec/securityContext/runAsUser", json!(0)),
        ("/spec/securityContext/runAsUser", json!(1)),
        ("/spec/securityContext/seccompProfile", Value::Null),
        ("/spec/securityContext/seccompProfile", json!({"type": "Unconfined"})),
        ("/spec/securityContext/appArmorProfile", json!({"type": "Unconfined"})),
        ("/spec/securityContext/appArmorProfile", json!({"type": "Localhost", "localhostProfile": "x"})),
        ("/spec/securityContext/seLinuxOptions", json!({"type": "container_engine_t"})),
        ("/spec/securityContext/seLinuxOptions", json!({"type": "spc_t"})),
        ("/spec/securityContext/seLinuxOptions", json!({"user": "sysadm_u"})),
        ("/spec/securityContext/seLinuxOptions", json!({"role": "sysadm_r"})),
        ("/spec/securityContext/seLinuxOptions", json!({"level": "s0"})),
        ("/spec/containers/0/securityContext/allowPrivilegeEscalation", Value::Null),
        ("/spec/containers/0/securityContext/capabilities", Value::Null),
        ("/spec/containers/0/securityContext/runAsNonRoot", json!(false)),
        ("/spec/containers/0/securityContext/runAsUser", json!(0)),
        ("/spec/containers/0/securityContext/procMount", json!("Default")),
        ("/spec/containers/0/securityContext/seccompProfile", json!({"type": "Unconfined"})),
        (
            "/spec/containers/0/securityContext/seccompProfile",
            json!({"type": "Localhost", "localhostProfile": "x"}),
        ),
        ("/spec/containers/0/securityContext/appArmorProfile", json!({"type": "Unconfined"})),
        ("/spec/containers/0/securityContext/seLinuxOptions", json!({"type": "spc_t"})),
        (context, Value::Null),
    ];
    for capability in CAPABILITIES {
        let value = json!({"add": [capability], "drop": ["ALL"]});
        all.push(("/spec/containers/0/securityContext/capabilities", value));
    }
    for sysctl in SYSCTLS {
        all.push(("/spec/securityContext/sysctls", json!([{"name": sysctl, "value": "1"}])));
    }
    for source in [
        json!({"hostPath": {"path": "/"}}),
        json!({"nfs": {"path": "/", "server": "s"}}),
        json!({"iscsi": {"iqn": "iqn.2020-01.a.b:c", "lun": 0, "targetPortal": "t"}}),
        json!({"flexVolume": {"driver": "a/d"}}),
        json!({"csi": {"driver": "a.d"}}),
        json!({"emptyDir": {}}),
        json!({"image": {"reference": "r"}}),
        json!({"configMap": {"name": "c"}}),
        json!({"persistentVolumeClaim": {"claimName": "c"}}),
    ] {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        all.push(("/spec/volumes", json!([volume])));
    }
    all
}

/// Whether the API server admits a pod, and why not otherwise; the outer error is that it is no valid pod.
async fn admitted(pods: &Objects<Pod>, pod: &Value) -> Result<Result<(), String>, String> {
    match pods.create(&serde_json::from_value(pod.clone()).unwrap()).await {
        Ok(made) => {
            let (name, uid) = (made.metadata.name.unwrap(), made.metadata.uid.unwrap());
            pods.delete_with_grace(&name, &uid, std::time::Duration::ZERO).await.unwrap();
            Ok(Ok(()))
        }
        Err(error) if error.kind == Kind::Forbidden && error.message.contains("violates PodSecurity") => {
            Ok(Err(error.message))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Whether we admit it.
fn translated(pod: &Value, level: PodSecurity) -> Result<(), String> {
    let mut upper: Pod = serde_json::from_value(pod.clone()).unwrap();
    (upper.metadata.namespace, upper.metadata.uid) = (Some("n".to_owned()), Some("u".to_owned()));
    let drivers = ["nfs", "iscsi", "a/d", "a.d"].map(str::to_owned).to_vec();
    let allowed = AllowedChoices { volume_drivers: drivers, ..AllowedChoices::default() };
    let policy = TranslationPolicy { pod_security: level, allowed, ..TranslationPolicy::default() };
    let owner = OwnerId { origin: "o".to_owned(), node: "n".to_owned() };
    translate(&upper, &owner, &policy, &ClusterClasses::default()).map(drop).map_err(|why| why.to_string())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn pods_are_refused_exactly_where_pod_security_admission_refuses_them() {
    let cluster = ControlPlane::shared().await;
    let admin = Client::fixed(cluster.admin().unwrap(), Metrics::default());
    let mut differences = Vec::new();
    for (name, level) in [("baseline", PodSecurity::Baseline), ("restricted", PodSecurity::Restricted)] {
        let namespace = cluster.namespace(name).await.unwrap();
        let namespaces: Objects<k8s_openapi::api::core::v1::Namespace> = Objects::all(admin.clone());
        let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": name}}});
        namespaces.patch(namespace.name(), vk_kube::Patch::Merge(&label)).await.unwrap();
        let pods: Objects<Pod> = Objects::namespaced(admin.clone(), namespace.name());
        let mut privileged = pod();
        privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
        eventually("the level is enforced", std::time::Duration::from_mins(1), || async {
            if admitted(&pods, &privileged).await?.is_err() { Ok(()) } else { Err("it is not".to_owned()) }
        })
        .await;
        assert_eq!((admitted(&pods, &pod()).await, translated(&pod(), level)), (Ok(Ok(())), Ok(())));
        for (path, value) in changes() {
            let mut changed = pod();
            let (parent, field) = path.rsplit_once('/').unwrap();
            changed.pointer_mut(parent).unwrap()[field] = value.clone();
            let (theirs, ours) = (admitted(&pods, &changed).await, translated(&changed, level));
            if !matches!(&theirs, Ok(theirs) if theirs.is_ok() == ours.is_ok()) {
                differences.push(format!("{name} {path} {value}: theirs {theirs:?}, ours {ours:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
