use serde_json::{Value, json};
use vk_provider::error::Kind;

use super::*;

fn pod(volume: &Value) -> Pod {
    let mut volume = volume.clone();
    volume["name"] = json!("data");
    serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "volumes": [volume, { "name": "unused", "nfs": { "server": "s", "path": "/" } }],
            "containers": [{ "name": "app", "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }],
        },
    }))
    .expect("a pod")
}

fn source(volume: &Value) -> Result<VolumeSource> {
    let pod = pod(volume);
    let volume = mounted(&pod).next().expect("a volume").clone();
    VolumeSource::of(&volume, &pod)
}

#[test]
fn every_kind_that_can_be_made_is_recognised() {
    let table = [
        (json!({ "emptyDir": {} }), "EmptyDir"),
        (json!({ "hostPath": { "path": "/x" } }), "Host"),
        (
            json!({ "configMap": { "name": "m" } }),
            "Files { kind: \"kubernetes.io~configmap\", memory: false }",
        ),
        (
            json!({ "secret": { "secretName": "s" } }),
            "Files { kind: \"kubernetes.io~secret\", memory: true }",
        ),
        (json!({ "projected": {} }), "Files { kind: \"kubernetes.io~projected\", memory: true }"),
        (json!({ "downwardAPI": {} }), "Files { kind: \"kubernetes.io~downward-api\", memory: true }"),
        (
            json!({ "persistentVolumeClaim": { "claimName": "pvc", "readOnly": true } }),
            "Claim { name: \"pvc\", read_only: true }",
        ),
        (json!({ "ephemeral": {} }), "Claim { name: \"web-data\", read_only: false }"),
        (json!({ "image": { "reference": "i" } }), "Image"),
    ];
    for (volume, wanted) in table {
        let found = format!("{:?}", source(&volume).expect("a source"));
        assert!(found.starts_with(wanted), "{volume}: {found}");
    }
}

#[test]
fn a_kind_that_cannot_be_made_is_an_error_that_names_volume_and_kind() {
    for (kind, volume) in [
        ("nfs", json!({ "server": "s", "path": "/" })),
        ("csi", json!({ "driver": "d" })),
        ("awsElasticBlockStore", json!({ "volumeID": "v" })),
        ("iscsi", json!({ "targetPortal": "p", "iqn": "i", "lun": 0 })),
        ("gitRepo", json!({ "repository": "r" })),
    ] {
        let error = source(&json!({ kind: volume })).expect_err(kind);
        assert_eq!(error.kind(), &Kind::Unsupported);
        assert!(error.message().starts_with(&format!("volume \"data\" is of kind {kind}, which")), "{error}");
    }
    let error = source(&json!({ "somethingNew": {} })).expect_err("unknown");
    assert!(error.message().contains("of a kind that this version does not know"), "{error}");
}

#[test]
fn a_persistent_volume_that_cannot_be_mounted_is_named_with_its_kind() {
    let volume = serde_json::from_value(json!({
        "metadata": { "name": "pv-1" },
        "spec": { "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "volumeMode": "Filesystem",
            "nfs": { "server": "s", "path": "/" } },
    }))
    .expect("a volume");
    let error = unsupported(&volume);
    assert!(error.message().starts_with("persistent volume \"pv-1\" is of kind nfs, which"), "{error}");
}

#[test]
fn only_what_containers_use_is_made_and_block_devices_are_refused() {
    let mut pod = pod(&json!({ "emptyDir": {} }));
    let names = |pod: &Pod| mounted(pod).map(|volume| volume.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&pod), ["data"]);
    assert!(block_device(&pod, "data").is_none());
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[0].volume_devices =
        serde_json::from_value(json!([{ "name": "unused", "devicePath": "/dev/x" }])).expect("devices");
    assert_eq!(names(&pod), ["data", "unused"]);
    let error = block_device(&pod, "unused").expect("an error");
    assert_eq!(error.kind(), &Kind::Unsupported);
    assert!(
        error.message().starts_with("volume \"unused\" is a block device of container \"app\""),
        "{error}"
    );
}

#[test]
fn image_volumes_are_told_for_the_runtime() {
    let pod = pod(&json!({ "image": { "reference": "registry.example/files:1", "pullPolicy": "Always" } }));
    let wanted = ImageVolume {
        volume: "data".to_owned(),
        reference: "registry.example/files:1".to_owned(),
        pull_policy: Some("Always".to_owned()),
    };
    assert_eq!(images(&pod), [wanted]);
}
