//! Properties of the translation for every pod.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodSpec;
use proptest::{prelude::*, sample::subsequence};

use super::*;
use crate::dependencies::dependencies;

const KEYS: [&str; 8] = [
    "app",
    "tier",
    "virtual-pod",
    "pod-group.scheduling.sigs.k8s.io",
    "multicluster.virtual-kubelet.io/origin",
    "multicluster.virtual-kubelet.io/node",
    "multicluster.virtual-kubelet.io/input",
    "kubectl.kubernetes.io/last-applied-configuration",
];

const PATHS: [&str; 4] = ["metadata.namespace", "metadata.uid", "spec.serviceAccountName", "status.podIP"];

fn texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(prop::sample::select(&KEYS[..]).prop_map(str::to_owned), "[a-c]{0,2}", 0..6)
}

/// Volumes with unique names.
fn volumes() -> impl Strategy<Value = Vec<Value>> {
    let all = vec![
        json!({"name": "kube-api-access-1", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "kube-root-ca.crt"}}]}}),
        json!({"name": "default-token-1", "secret": {"secretName": "default-token-1"}}),
        json!({"name": "default-token-dir", "emptyDir": {}}),
        json!({"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
        json!({"name": "mixed", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}}]}}),
        json!({"name": "config", "configMap": {"name": "c", "optional": true}}),
        json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
        json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}}),
        json!({"name": "about", "downwardAPI": {"items": [{"path": "u", "fieldRef": {"fieldPath": "metadata.uid"}}]}}),
    ];
    let count = all.len();
    subsequence(all, 0..=count)
}

fn container(name: String, volumes: &[Value]) -> impl Strategy<Value = Value> + use<> {
    let names: Vec<Value> = volumes.iter().map(|volume| volume["name"].clone()).collect();
    let (count, paths) = (names.len(), prop::sample::select(&PATHS[..]));
    (subsequence(names, 0..=count), prop::collection::vec(paths, 0..3), "[a-b]", 0..3u8).prop_map(
        move |(mounts, paths, image, cpu)| {
            let mounts: Vec<Value> =
                mounts.iter().map(|volume| json!({"name": volume, "mountPath": "/m"})).collect();
            let env: Vec<Value> = paths
                .iter()
                .map(|path| json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}))
                .collect();
            let requests = if cpu == 0 { json!({}) } else { json!({"cpu": cpu.to_string()}) };
            json!({
                "name": name, "image": image, "env": env, "volumeMounts": mounts,
                "resources": {"requests": requests},
            })
        },
    )
}

fn spec() -> impl Strategy<Value = PodSpec> {
    let tolerations = vec![
        json!({"key": "virtual-kubelet.io/provider", "operator": "Exists"}),
        json!({"key": "gpu", "operator": "Exists"}),
        json!({"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}),
        json!({"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}),
    ];
    volumes().prop_flat_map(move |volumes| {
        let web = container("web".to_owned(), &volumes);
        let init = container("init".to_owned(), &volumes);
        let debug = container("debug".to_owned(), &volumes).prop_map(|mut container| {
            container.as_object_mut().unwrap().remove("resources");
            container
        });
        let sometimes = (any::<bool>(), any::<bool>(), prop::option::of(1..9i64));
        (Just(volumes), web, init, debug, subsequence(tolerations.clone(), 0..=3), sometimes).prop_map(
            |(volumes, web, init, debug, tolerations, (account, debugs, deadline))| {
                let mut spec = json!({
                    "nodeName": "vk-node", "nodeSelector": {"type": "virtual-kubelet"},
                    "schedulerName": "above", "priority": 7,
                    "containers": [web], "initContainers": [init],
                    "volumes": volumes, "tolerations": tolerations,
                });
                if account {
                    spec["serviceAccountName"] = json!("builder");
                }
                if debugs {
                    spec["ephemeralContainers"] = json!([debug]);
                }
                if let Some(deadline) = deadline {
                    spec["activeDeadlineSeconds"] = json!(deadline);
                }
                serde_json::from_value(spec).unwrap()
            },
        )
    })
}

pub(in super::super) fn pods() -> impl Strategy<Value = Pod> {
    (texts(), texts(), spec(), any::<u8>()).prop_map(|(labels, annotations, spec, version)| {
        let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r"}]);
        Pod {
            metadata: ObjectMeta {
                labels: Some(labels),
                annotations: Some(annotations),
                generate_name: Some("web-".to_owned()),
                finalizers: Some(vec!["example.com/f".to_owned()]),
                resource_version: Some(version.to_string()),
                owner_references: serde_json::from_value(owners).unwrap(),
                ..pod(json!({})).metadata
            },
            spec: Some(spec),
            status: None,
        }
    })
}

pub(in super::super) fn policies() -> impl Strategy<Value = TranslationPolicy> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(mapped, access, selector)| TranslationPolicy {
        namespaces: if mapped { NamespaceMapping::Suffix("-x".to_owned()) } else { NamespaceMapping::Same },
        access: if access { ApiAccess::Lower } else { ApiAccess::None },
        node_selector: if selector { [("pool".to_owned(), "a".to_owned())].into() } else { BTreeMap::new() },
        ..TranslationPolicy::default()
    })
}

fn names_of(list: Option<&Vec<k8s_openapi::api::core::v1::Volume>>) -> BTreeSet<&str> {
    list.into_iter().flatten().map(|volume| volume.name.as_str()).collect()
}

proptest! {
    #[test]
    fn the_translation_is_deterministic(upper in pods(), policy in policies(), version in any::<u32>()) {
        let first = translate(&upper, &owner(), &policy, &ClusterClasses::default()).unwrap();
        let mut later = upper.clone();
        later.metadata.resource_version = Some(version.to_string());
        later.metadata.generation = Some(i64::from(version));
        later.metadata.managed_fields = Some(Vec::new());
        later.status = Some(serde_json::from_value(json!({"phase": "Running"})).unwrap());
        let second = translate(&later, &owner(), &policy, &ClusterClasses::default()).unwrap();
        prop_assert_eq!(&first, &second, "neither time nor status is part of it");
        prop_assert_eq!(names::annotation(&first.pod.metadata, names::INPUT), Some(first.input.as_str()));
    }

    #[test]
    fn different_lower_pods_have_different_hashes(one in pods(), other in pods(), policy in policies()) {
        let one = translate(&one, &owner(), &policy, &ClusterClasses::default()).unwrap();
        let other = translate(&other, &owner(), &policy, &ClusterClasses::default()).unwrap();
        prop_assert_eq!(one.pod == other.pod, one.input == other.input);
    }

    #[test]
    fn fields_of_the_upper_cluster_are_never_copied(upper in pods(), policy in policies()) {
        let lower = below_by(&upper, &policy);
        let expected = ObjectMeta {
            name: upper.metadata.name.clone(),
            namespace: policy.namespaces.to_lower("shop"),
            labels: lower.metadata.labels.clone(),
            annotations: lower.metadata.annotations.clone(),
            ..ObjectMeta::default()
        };
        prop_assert_eq!(&lower.metadata, &expected);
        prop_assert_eq!(names::label(&lower.metadata, names::ORIGIN), Some("upper"));
        prop_assert_eq!(names::label(&lower.metadata, names::NODE), Some("vk-node"));
        for (key, _) in lower.metadata.annotations.iter().flatten() {
            let ours = [names::INPUT, names::APPLIED, names::ORIGIN_NAME, names::ORIGIN_NAMESPACE];
            prop_assert!(!key.starts_with(names::PREFIX) || ours.contains(&key.as_str()), "{key}");
            prop_assert!(!key.starts_with("kubectl"), "{key}");
        }
        let spec = lower.spec.unwrap();
        prop_assert_eq!((spec.node_name, spec.scheduler_name, spec.priority), (None, None, None));
        prop_assert_eq!(spec.ephemeral_containers, None);
        prop_assert_eq!(spec.node_selector.unwrap_or_default(), policy.node_selector);
        let ours = |toleration: &Toleration| toleration.key.as_deref() == Some("virtual-kubelet.io/provider");
        prop_assert!(!spec.tolerations.iter().flatten().any(ours));
    }

    #[test]
    fn a_lower_pod_has_exactly_one_owner(upper in pods(), origin in "[a-c]", node in "[a-c]") {
        let one = OwnerId { origin: "a".to_owned(), node: "a".to_owned() };
        let other = OwnerId { origin, node };
        let policy = TranslationPolicy::default();
        let ours = translate(&upper, &one, &policy, &ClusterClasses::default()).unwrap();
        let theirs = translate(&upper, &other, &policy, &ClusterClasses::default()).unwrap();
        prop_assert!(one.owns(&ours.pod.metadata));
        prop_assert_eq!(other.owns(&ours.pod.metadata), one == other);
        prop_assert_eq!(ours == theirs, one == other);
    }

    #[test]
    fn every_mount_has_its_volume_and_user_volumes_stay(upper in pods(), policy in policies()) {
        let spec = below_by(&upper, &policy).spec.unwrap();
        let (before, after) = (names_of(upper.spec.as_ref().unwrap().volumes.as_ref()), names_of(spec.volumes.as_ref()));
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            for mount in container.volume_mounts.iter().flatten() {
                prop_assert!(after.contains(mount.name.as_str()), "{} has no volume", mount.name);
            }
        }
        let gone: BTreeSet<&str> = match policy.access {
            ApiAccess::Lower => ["kube-api-access-1", "default-token-1"].into(),
            ApiAccess::None => ["kube-api-access-1", "default-token-1", "token"].into(),
        };
        prop_assert_eq!(after, &before - &gone);
    }

    #[test]
    fn a_lower_pod_refers_to_the_dependencies_of_the_upper_pod(upper in pods(), policy in policies()) {
        let mut above = dependencies(&upper);
        let below = dependencies(&below_by(&upper, &policy));
        above.service_account = Some(policy.accounts.lower_account(&upper, &owner()));
        prop_assert_eq!(below, above);
    }
}
