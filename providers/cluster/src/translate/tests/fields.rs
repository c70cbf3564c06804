//! Every field of the pod API, with the expected treatment of each.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, Volume};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{below, lower_annotation, pod};
use crate::translate::NOT_COPIED;

/// How the translation treats a field of an upper pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
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
const RULES: &[(&str, Rule)] = &[
    ("activeDeadlineSeconds", Rule::Kept),
    ("affinity", Rule::Replaced),
    ("automountServiceAccountToken", Rule::Rewritten),
    ("containers", Rule::Rewritten),
    ("dnsConfig", Rule::Kept),
    ("dnsPolicy", Rule::Kept),
    ("enableServiceLinks", Rule::Kept),
    ("ephemeralContainers", Rule::Added),
    ("evictionResponders", Rule::Dropped),
    ("hostAliases", Rule::Kept),
    ("hostIPC", Rule::Allowed),
    ("hostNetwork", Rule::Allowed),
    ("hostPID", Rule::Allowed),
    ("hostUsers", Rule::Kept),
    ("hostname", Rule::Kept),
    ("hostnameOverride", Rule::Kept),
    ("imagePullSecrets", Rule::Kept),
    ("initContainers", Rule::Rewritten),
    ("nodeName", Rule::Dropped),
    ("nodeSelector", Rule::Replaced),
    ("os", Rule::Kept),
    ("overhead", Rule::Dropped),
    ("preemptionPolicy", Rule::Dropped),
    ("priority", Rule::Dropped),
    ("priorityClassName", Rule::Replaced),
    ("readinessGates", Rule::Dropped),
    ("resourceClaims", Rule::Rejected),
    ("resources", Rule::Kept),
    ("restartPolicy", Rule::Kept),
    ("runtimeClassName", Rule::Replaced),
    ("schedulerName", Rule::Replaced),
    ("schedulingGates", Rule::Dropped),
    ("schedulingGroup", Rule::Dropped),
    ("securityContext", Rule::Allowed),
    ("serviceAccount", Rule::Dropped),
    ("serviceAccountName", Rule::Rewritten),
    ("setHostnameAsFQDN", Rule::Kept),
    ("shareProcessNamespace", Rule::Kept),
    ("subdomain", Rule::Kept),
    ("terminationGracePeriodSeconds", Rule::Kept),
    ("tolerations", Rule::Replaced),
    ("topologySpreadConstraints", Rule::Replaced),
    ("volumes", Rule::Rewritten),
];

/// The fields of containers of all kinds.
const CONTAINER_RULES: &[(&str, Rule)] = &[
    ("args", Rule::Kept),
    ("command", Rule::Kept),
    ("env", Rule::Rewritten),
    ("envFrom", Rule::Kept),
    ("image", Rule::Kept),
    ("imagePullPolicy", Rule::Kept),
    ("lifecycle", Rule::Kept),
    ("livenessProbe", Rule::Kept),
    ("name", Rule::Kept),
    ("ports", Rule::Kept),
    ("readinessProbe", Rule::Kept),
    ("resizePolicy", Rule::Kept),
    ("resources", Rule::Kept),
    ("restartPolicy", Rule::Kept),
    ("restartPolicyRules", Rule::Kept),
    ("securityContext", Rule::Allowed),
    ("startupProbe", Rule::Kept),
    ("stdin", Rule::Kept),
    ("stdinOnce", Rule::Kept),
    ("targetContainerName", Rule::Kept),
    ("terminationMessagePath", Rule::Kept),
    ("terminationMessagePolicy", Rule::Kept),
    ("tty", Rule::Kept),
    ("volumeDevices", Rule::Kept),
    ("volumeMounts", Rule::Rewritten),
    ("workingDir", Rule::Kept),
];

/// The volume sources.
const VOLUME_RULES: &[(&str, Rule)] = &[
    ("awsElasticBlockStore", Rule::Kept),
    ("azureDisk", Rule::Kept),
    ("azureFile", Rule::Kept),
    ("cephfs", Rule::Kept),
    ("cinder", Rule::Kept),
    ("configMap", Rule::Kept),
    ("csi", Rule::Kept),
    ("downwardAPI", Rule::Rewritten),
    ("emptyDir", Rule::Kept),
    ("ephemeral", Rule::Rewritten),
    ("fc", Rule::Kept),
    ("flexVolume", Rule::Kept),
    ("flocker", Rule::Kept),
    ("gcePersistentDisk", Rule::Kept),
    ("gitRepo", Rule::Kept),
    ("glusterfs", Rule::Kept),
    ("hostPath", Rule::Allowed),
    ("image", Rule::Kept),
    ("iscsi", Rule::Kept),
    ("name", Rule::Kept),
    ("nfs", Rule::Kept),
    ("persistentVolumeClaim", Rule::Kept),
    ("photonPersistentDisk", Rule::Kept),
    ("portworxVolume", Rule::Kept),
    ("projected", Rule::Rewritten),
    ("quobyte", Rule::Kept),
    ("rbd", Rule::Kept),
    ("scaleIO", Rule::Kept),
    ("secret", Rule::Rewritten),
    ("storageos", Rule::Kept),
    ("vsphereVolume", Rule::Kept),
];

/// The fields of a type as they are called in JSON. A field that the API gets is missing here, and this does not compile.
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

fn names(rules: &[(&str, Rule)]) -> BTreeSet<String> {
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

/// Something in every field that a pod may have below a virtual node. What is replaced says what means nothing below.
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

/// Reads a sample, and makes sure that nothing of it has got lost.
fn read<T: Serialize + DeserializeOwned>(value: &Value) -> T {
    let read = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *value);
    read
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

fn spec_below(pod: &Pod) -> Value {
    serde_json::to_value(below(pod).spec).unwrap()
}

#[test]
fn what_becomes_of_each_field_of_a_pod_is_what_its_rule_says() {
    let upper = spec();
    let mut with_claims = keys(&upper);
    with_claims.insert("resourceClaims".to_owned());
    assert_eq!(with_claims, names(RULES), "the sample has all");
    let lower = spec_below(&Pod { spec: Some(read(&upper)), ..pod(json!({})) });
    for (field, rule) in RULES {
        match rule {
            Rule::Kept | Rule::Allowed => assert_eq!(lower[field], upper[field], "{field}"),
            Rule::Dropped | Rule::Replaced | Rule::Rejected | Rule::Added => {
                assert_eq!(lower[field], Value::Null, "{field}");
            }
            Rule::Rewritten => assert_ne!(lower[field], Value::Null, "{field}"),
        }
    }
}

#[test]
fn the_fields_that_are_not_copied_are_those_of_the_table() {
    let not_copied = RULES
        .iter()
        .filter(|(_, rule)| matches!(rule, Rule::Dropped | Rule::Replaced | Rule::Rejected | Rule::Added));
    assert_eq!(NOT_COPIED.to_vec(), not_copied.map(|(name, _)| *name).collect::<Vec<_>>());
}

#[test]
fn what_is_replaced_is_what_the_annotation_says() {
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
    for (field, _) in RULES.iter().filter(|(_, rule)| *rule == Rule::Replaced) {
        assert_ne!(said[field], Value::Null, "{field} can be said");
        assert_eq!(lower[field], said[field], "{field}");
    }
}

#[test]
fn what_becomes_of_each_field_of_a_container_is_what_its_rule_says() {
    let upper = container();
    let mut all = keys(&upper);
    all.insert("targetContainerName".to_owned());
    assert_eq!(all, names(CONTAINER_RULES), "the sample has all");
    let mut whole = spec();
    whole["initContainers"] = json!([upper]);
    whole["initContainers"][0]["name"] = json!("init");
    let lower = spec_below(&Pod { spec: Some(read(&whole)), ..pod(json!({})) });
    // Nothing in the sample means something else below.
    assert_eq!(lower["containers"][0], upper);
    assert_eq!(lower["initContainers"], whole["initContainers"]);
}

#[test]
fn volumes_are_the_same_below_but_for_what_is_fitted() {
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
