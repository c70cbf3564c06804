//! Every field of the pod API, with the expected treatment of each.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, Volume};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{below_by, lower_annotation, permissive, pod};
use crate::translate::NOT_COPIED;

/// How the translation treats a field of an upper pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldRule {
    /// Copied unchanged.
    Kept,
    /// Only meaningful in the upper cluster.
    Dropped,
    /// The upper scheduler consumes it. The annotation [`LOWER`](crate::names::LOWER) and the configuration replace it.
    Replaced,
    /// Copied, with the parts rewritten that mean something else in the lower cluster.
    Rewritten,
    /// Copied, or the pod is rejected, depending on the configuration.
    Allowed,
    /// A pod that sets it is rejected.
    Rejected,
    /// Not created with the pod but added while it runs.
    Added,
}

/// The fields of `PodSpec`.
const RULES: &[(&str, FieldRule)] = &[
    ("activeDeadlineSeconds", FieldRule::Kept),
    ("affinity", FieldRule::Replaced),
    ("automountServiceAccountToken", FieldRule::Rewritten),
    ("containers", FieldRule::Rewritten),
    ("dnsConfig", FieldRule::Kept),
    ("dnsPolicy", FieldRule::Kept),
    ("enableServiceLinks", FieldRule::Kept),
    ("ephemeralContainers", FieldRule::Added),
    ("evictionResponders", FieldRule::Dropped),
    ("hostAliases", FieldRule::Kept),
    ("hostIPC", FieldRule::Allowed),
    ("hostNetwork", FieldRule::Allowed),
    ("hostPID", FieldRule::Allowed),
    ("hostUsers", FieldRule::Kept),
    ("hostname", FieldRule::Kept),
    ("hostnameOverride", FieldRule::Kept),
    ("imagePullSecrets", FieldRule::Kept),
    ("initContainers", FieldRule::Rewritten),
    ("nodeName", FieldRule::Dropped),
    ("nodeSelector", FieldRule::Replaced),
    ("os", FieldRule::Kept),
    ("overhead", FieldRule::Dropped),
    ("preemptionPolicy", FieldRule::Dropped),
    ("priority", FieldRule::Dropped),
    ("priorityClassName", FieldRule::Replaced),
    ("readinessGates", FieldRule::Dropped),
    ("resourceClaims", FieldRule::Rejected),
    ("resources", FieldRule::Kept),
    ("restartPolicy", FieldRule::Kept),
    ("runtimeClassName", FieldRule::Replaced),
    ("schedulerName", FieldRule::Replaced),
    ("schedulingGates", FieldRule::Dropped),
    ("schedulingGroup", FieldRule::Dropped),
    ("securityContext", FieldRule::Allowed),
    ("serviceAccount", FieldRule::Dropped),
    ("serviceAccountName", FieldRule::Rewritten),
    ("setHostnameAsFQDN", FieldRule::Kept),
    ("shareProcessNamespace", FieldRule::Kept),
    ("subdomain", FieldRule::Kept),
    ("terminationGracePeriodSeconds", FieldRule::Kept),
    ("tolerations", FieldRule::Replaced),
    ("topologySpreadConstraints", FieldRule::Replaced),
    ("volumes", FieldRule::Rewritten),
];

/// The fields of containers of all kinds.
const CONTAINER_RULES: &[(&str, FieldRule)] = &[
    ("args", FieldRule::Kept),
    ("command", FieldRule::Kept),
    ("env", FieldRule::Rewritten),
    ("envFrom", FieldRule::Kept),
    ("image", FieldRule::Kept),
    ("imagePullPolicy", FieldRule::Kept),
    ("lifecycle", FieldRule::Kept),
    ("livenessProbe", FieldRule::Kept),
    ("name", FieldRule::Kept),
    ("ports", FieldRule::Allowed),
    ("readinessProbe", FieldRule::Kept),
    ("resizePolicy", FieldRule::Kept),
    ("resources", FieldRule::Kept),
    ("restartPolicy", FieldRule::Kept),
    ("restartPolicyRules", FieldRule::Kept),
    ("securityContext", FieldRule::Allowed),
    ("startupProbe", FieldRule::Kept),
    ("stdin", FieldRule::Kept),
    ("stdinOnce", FieldRule::Kept),
    ("targetContainerName", FieldRule::Kept),
    ("terminationMessagePath", FieldRule::Kept),
    ("terminationMessagePolicy", FieldRule::Kept),
    ("tty", FieldRule::Kept),
    ("volumeDevices", FieldRule::Kept),
    ("volumeMounts", FieldRule::Rewritten),
    ("workingDir", FieldRule::Kept),
];

/// The volume sources.
const VOLUME_RULES: &[(&str, FieldRule)] = &[
    ("awsElasticBlockStore", FieldRule::Kept),
    ("azureDisk", FieldRule::Kept),
    ("azureFile", FieldRule::Kept),
    ("cephfs", FieldRule::Kept),
    ("cinder", FieldRule::Kept),
    ("configMap", FieldRule::Kept),
    ("csi", FieldRule::Allowed),
    ("downwardAPI", FieldRule::Rewritten),
    ("emptyDir", FieldRule::Kept),
    ("ephemeral", FieldRule::Rewritten),
    ("fc", FieldRule::Kept),
    ("flexVolume", FieldRule::Allowed),
    ("flocker", FieldRule::Kept),
    ("gcePersistentDisk", FieldRule::Kept),
    ("gitRepo", FieldRule::Kept),
    ("glusterfs", FieldRule::Kept),
    ("hostPath", FieldRule::Allowed),
    ("image", FieldRule::Kept),
    ("iscsi", FieldRule::Kept),
    ("name", FieldRule::Kept),
    ("nfs", FieldRule::Kept),
    ("persistentVolumeClaim", FieldRule::Kept),
    ("photonPersistentDisk", FieldRule::Kept),
    ("portworxVolume", FieldRule::Kept),
    ("projected", FieldRule::Rewritten),
    ("quobyte", FieldRule::Kept),
    ("rbd", FieldRule::Kept),
    ("scaleIO", FieldRule::Kept),
    ("secret", FieldRule::Rewritten),
    ("storageos", FieldRule::Kept),
    ("vsphereVolume", FieldRule::Kept),
];

/// The JSON names of the fields of a type. It fails to compile when the API gets another field.
macro_rules! fields {
    ($name:ident { $($field:ident),* $(,)? }) => {{
        let _all = |value: &$name| { let $name { $($field: _),* } = value; };
        BTreeSet::from([$(in_json(stringify!($field))),*])
    }};
}

fn in_json(field: &str) -> String {
    let mut name = String::new();
    for (index, word) in field.split('_').enumerate() {
        match word {
            "ipc" | "pid" | "fqdn" | "api" | "io" => name.push_str(&word.to_uppercase()),
            word if index == 0 => name.push_str(word),
            word => {
                name.push_str(&word[..1].to_uppercase());
                name.push_str(&word[1..]);
            }
        }
    }
    name
}

fn names(rules: &[(&str, FieldRule)]) -> BTreeSet<String> {
    let names: BTreeSet<String> = rules.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.len(), rules.len(), "one rule for each");
    names
}

#[test]
fn every_field_of_a_pod_has_a_rule() {
    let fields = fields!(PodSpec {
        active_deadline_seconds,
        affinity,
        automount_service_account_token,
        containers,
        dns_config,
        dns_policy,
        enable_service_links,
        ephemeral_containers,
        eviction_responders,
        host_aliases,
        host_ipc,
        host_network,
        host_pid,
        host_users,
        hostname,
        hostname_override,
        image_pull_secrets,
        init_containers,
        node_name,
        node_selector,
        os,
        overhead,
        preemption_policy,
        priority,
        priority_class_name,
        readiness_gates,
        resource_claims,
        resources,
        restart_policy,
        runtime_class_name,
        scheduler_name,
        scheduling_gates,
        scheduling_group,
        security_context,
        service_account,
        service_account_name,
        set_hostname_as_fqdn,
        share_process_namespace,
        subdomain,
        termination_grace_period_seconds,
        tolerations,
        topology_spread_constraints,
        volumes,
    });
    assert_eq!(names(RULES), fields);
}

#[test]
fn every_field_of_a_container_has_a_rule() {
    let common = fields!(Container {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    });
    let ephemeral = fields!(EphemeralContainer {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        target_container_name,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    });
    assert_eq!(names(CONTAINER_RULES), &common | &ephemeral);
}

#[test]
fn every_kind_of_volume_has_a_rule() {
    let fields = fields!(Volume {
        aws_elastic_block_store,
        azure_disk,
        azure_file,
        cephfs,
        cinder,
        config_map,
        csi,
        downward_api,
        empty_dir,
        ephemeral,
        fc,
        flex_volume,
        flocker,
        gce_persistent_disk,
        git_repo,
        glusterfs,
        host_path,
        image,
        iscsi,
        name,
        nfs,
        persistent_volume_claim,
        photon_persistent_disk,
        portworx_volume,
        projected,
        quobyte,
        rbd,
        scale_io,
        secret,
        storageos,
        vsphere_volume,
    });
    assert_eq!(names(VOLUME_RULES), fields);
}

/// A sample for every field of a pod. Replaced fields have values that mean nothing in the lower cluster.
fn spec() -> Value {
    let mut spec = json!({
        "activeDeadlineSeconds": 60,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "type", "operator": "In", "values": ["virtual-kubelet"]}]}
        ]}}},
        "automountServiceAccountToken": true,
        "containers": [container()],
        "dnsConfig": {"nameservers": ["192.0.2.1"]},
        "dnsPolicy": "None",
        "enableServiceLinks": false,
        "ephemeralContainers": [{"name": "debug", "image": "busybox"}],
        "evictionResponders": [{"name": "example.com/above", "priority": 10000}],
        "hostAliases": [{"ip": "192.0.2.2", "hostnames": ["db"]}],
        "hostIPC": true,
        "hostNetwork": true,
        "hostPID": true,
        "hostUsers": true,
        "hostname": "web",
        "hostnameOverride": "web.example.com",
        "imagePullSecrets": [{"name": "registry"}],
        "initContainers": [{"name": "init", "image": "busybox"}],
    });
    let rest = json!({
        "nodeName": "vk-node",
        "nodeSelector": {"type": "virtual-kubelet"},
        "os": {"name": "linux"},
        "overhead": {"cpu": "1"},
        "preemptionPolicy": "Never",
        "priority": 1000,
        "priorityClassName": "above-only",
        "readinessGates": [{"conditionType": "example.com/ready"}],
        "resources": {"requests": {"cpu": "1"}},
        "restartPolicy": "Always",
        "runtimeClassName": "virtual-kubelet",
        "schedulerName": "above-only",
        "schedulingGates": [{"name": "example.com/gate"}],
        "schedulingGroup": {"podGroupName": "above-only"},
        "securityContext": {"fsGroup": 7},
        "serviceAccount": "builder",
        "serviceAccountName": "builder",
        "setHostnameAsFQDN": true,
        "shareProcessNamespace": true,
        "subdomain": "sub",
        "terminationGracePeriodSeconds": 7,
        "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints":
            [{"maxSkew": 1, "topologyKey": "clusterID", "whenUnsatisfiable": "DoNotSchedule"}],
        "volumes": [{"name": "cache", "emptyDir": {}}],
    });
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}

fn container() -> Value {
    json!({
        "args": ["-v"],
        "command": ["web"],
        "env": [{"name": "A", "value": "$(B)"}],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "image": "web:1",
        "imagePullPolicy": "Always",
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
        "livenessProbe": {"tcpSocket": {"port": 1}},
        "name": "web",
        "ports": [{"containerPort": 80, "hostPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": 2}},
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"example.com/device": "1"}},
        "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}],
        "securityContext": {"privileged": true},
        "startupProbe": {"tcpSocket": {"port": 3}},
        "stdin": true,
        "stdinOnce": true,
        "terminationMessagePath": "/dev/why",
        "terminationMessagePolicy": "File",
        "tty": true,
        "volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}],
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        "workingDir": "/work",
    })
}

/// Parses a sample without losing anything.
fn read<T: Serialize + DeserializeOwned>(value: &Value) -> T {
    let read = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
    read
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

fn spec_below(pod: &Pod) -> Value {
    serde_json::to_value(below_by(pod, &permissive()).spec).unwrap()
}

#[test]
fn each_pod_field_is_translated_by_its_rule() {
    let upper = spec();
    let mut with_claims = keys(&upper);
    with_claims.insert("resourceClaims".to_owned());
    assert_eq!(with_claims, names(RULES), "the sample has all");
    let lower = spec_below(&Pod { spec: Some(read(&upper)), ..pod(json!({})) });
    for (field, rule) in RULES {
        match rule {
            FieldRule::Kept | FieldRule::Allowed => assert_eq!(lower[field], upper[field], "{field}"),
            FieldRule::Dropped | FieldRule::Replaced | FieldRule::Rejected | FieldRule::Added => {
                assert_eq!(lower[field], Value::Null, "{field}");
            }
            FieldRule::Rewritten => assert_ne!(lower[field], Value::Null, "{field}"),
        }
    }
}

#[test]
fn the_fields_that_are_not_copied_are_those_of_the_table() {
    let not_copied = RULES.iter().filter(|(_, rule)| {
        matches!(rule, FieldRule::Dropped | FieldRule::Replaced | FieldRule::Rejected | FieldRule::Added)
    });
    assert_eq!(NOT_COPIED.to_vec(), not_copied.map(|(name, _)| *name).collect::<Vec<_>>());
}

#[test]
fn replaced_fields_come_from_the_annotation() {
    let said = json!({
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
        ]}}},
        "nodeSelector": {"pool": "a"},
        "priorityClassName": "high",
        "runtimeClassName": "gvisor",
        "schedulerName": "volcano",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "topologySpreadConstraints":
            [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    });
    let mut upper = Pod { spec: Some(read(&spec())), ..pod(json!({})) };
    lower_annotation(&mut upper, &said);
    let lower = spec_below(&upper);
    for (field, _) in RULES.iter().filter(|(_, rule)| *rule == FieldRule::Replaced) {
        assert_ne!(said[field], Value::Null, "{field} can be said");
        assert_eq!(lower[field], said[field], "{field}");
    }
}

#[test]
fn each_container_field_is_translated_by_its_rule() {
    let upper = container();
    let mut all = keys(&upper);
    all.insert("targetContainerName".to_owned());
    assert_eq!(all, names(CONTAINER_RULES), "the sample has all");
    let mut whole = spec();
    whole["initContainers"] = json!([upper]);
    whole["initContainers"][0]["name"] = json!("init");
    let lower = spec_below(&Pod { spec: Some(read(&whole)), ..pod(json!({})) });
    // Nothing in the sample is rewritten.
    assert_eq!(lower["containers"][0], upper);
    assert_eq!(lower["initContainers"], whole["initContainers"]);
}

#[test]
fn volumes_are_copied_unless_they_are_rewritten() {
    let sources = BTreeMap::from([
        ("awsElasticBlockStore", json!({"volumeID": "v"})),
        ("azureDisk", json!({"diskName": "d", "diskURI": "u"})),
        ("azureFile", json!({"secretName": "s", "shareName": "h"})),
        ("cephfs", json!({"monitors": ["m"]})),
        ("cinder", json!({"volumeID": "v"})),
        ("configMap", json!({"name": "c"})),
        ("csi", json!({"driver": "d"})),
        ("downwardAPI", json!({"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]})),
        ("emptyDir", json!({"medium": "Memory"})),
        ("fc", json!({"wwids": ["w"]})),
        ("flexVolume", json!({"driver": "d"})),
        ("flocker", json!({"datasetName": "d"})),
        ("gcePersistentDisk", json!({"pdName": "p"})),
        ("gitRepo", json!({"repository": "r"})),
        ("glusterfs", json!({"endpoints": "e", "path": "p"})),
        ("hostPath", json!({"path": "/p"})),
        ("image", json!({"reference": "r"})),
        ("iscsi", json!({"iqn": "i", "lun": 0, "targetPortal": "t"})),
        ("nfs", json!({"path": "/p", "server": "s"})),
        ("persistentVolumeClaim", json!({"claimName": "c"})),
        ("photonPersistentDisk", json!({"pdID": "p"})),
        ("portworxVolume", json!({"volumeID": "v"})),
        (
            "projected",
            json!({"sources": [{"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}}]}),
        ),
        ("quobyte", json!({"registry": "r", "volume": "v"})),
        ("rbd", json!({"image": "i", "monitors": ["m"]})),
        ("scaleIO", json!({"gateway": "g", "secretRef": {"name": "s"}, "system": "s"})),
        ("secret", json!({"secretName": "s"})),
        ("storageos", json!({"volumeName": "v"})),
        ("vsphereVolume", json!({"volumePath": "v"})),
    ]);
    let volumes: Vec<Value> = sources
        .iter()
        .map(|(kind, source)| {
            let mut volume = json!({"name": kind.to_lowercase()});
            volume[kind] = source.clone();
            volume
        })
        .collect();
    let mut tested: BTreeSet<String> = sources.keys().map(|kind| (*kind).to_owned()).collect();
    tested.extend(["name", "ephemeral"].map(ToOwned::to_owned));
    assert_eq!(tested, names(VOLUME_RULES));
    let upper = pod(json!({"containers": [{"name": "web"}], "volumes": volumes}));
    assert_eq!(spec_below(&upper)["volumes"], json!(volumes));
}
