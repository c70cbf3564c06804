//! Every field of the pod API, with the expected treatment of each.

mod rules;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use self::rules::{CONTAINER_RULES, FieldRule, RULES, VOLUME_RULES, names};
use super::{below_by, lower_annotation, permissive, pod};
use crate::translate::NOT_COPIED;

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
