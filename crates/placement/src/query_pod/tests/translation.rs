//! The provider `cluster` decides about what nodes get to see of a pod as about the pod itself.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vk_provider_cluster::{
    names::{NamespaceMapping, OwnerId},
    translate::{AllowedChoices, ApiAccess, ClusterClasses, PodSecurity, TranslationPolicy, translate},
};

use super::*;

/// A pod that every policy accepts.
fn careful() -> Value {
    let context = json!({
        "runAsNonRoot": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container = |name: &str| {
        json!({
            "name": name, "image": "web:1", "command": ["web"], "env": [{"name": "A", "value": "b"}], "securityContext": context,
        })
    };
    json!({
        "metadata": {"name": "web", "namespace": "team", "uid": "u", "annotations": {"example.com/a": "b"}},
        "spec": {"containers": [container("main")], "initContainers": [container("init")]},
    })
}

/// What the provider rejects in at least one configuration: changes of the metadata, of the spec, and of each container.
fn rejected() -> Vec<Value> {
    let annotation = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let host = |action: &str| json!({action: {"port": 80, "host": "192.0.2.1"}});
    let pod = [
        json!({"metadata": {"namespace": "elsewhere"}}),
        annotation("container.apparmor.security.beta.kubernetes.io/main", "unconfined"),
        annotation("multicluster.virtual-kubelet.io/lower", "{"),
        annotation("multicluster.virtual-kubelet.io/lower", r#"{"schedulerName": "x"}"#),
        annotation("multicluster.virtual-kubelet.io/lower-nodes", "a in in"),
        annotation("multicluster.virtual-kubelet.io/lower-spread", "a b"),
        annotation("multicluster.virtual-kubelet.io/api-access", "lower"),
        annotation("clusterSelector", "{"),
    ];
    let spec = [
        json!({"hostNetwork": true}),
        json!({"hostPID": true}),
        json!({"hostIPC": true}),
        json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}),
        json!({"runtimeClassName": "kata"}),
        json!({"securityContext": {"runAsUser": 0}}),
        json!({"securityContext": {"runAsNonRoot": false}}),
        json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
        json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
        json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
        json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
        json!({"securityContext": {"seLinuxOptions": {"role": "x"}}}),
        json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        json!({"volumes": [{"name": "v", "nfs": {"path": "/", "server": "s"}}]}),
        json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}),
        json!({"volumes": [{"name": "v", "flexVolume": {"driver": "d"}}]}),
        json!({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "p", "name": "b"}}]}}]}),
        json!({"volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {"keyType": "ED25519", "signerName": "s"}}]}}]}),
        json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "namespaces": ["elsewhere"]}]}}}),
    ];
    let container = [
        json!({"ports": [{"containerPort": 80, "hostPort": 80}]}),
        json!({"livenessProbe": host("httpGet")}),
        json!({"readinessProbe": host("tcpSocket")}),
        json!({"startupProbe": host("httpGet")}),
        json!({"lifecycle": {"postStart": host("httpGet")}}),
        json!({"lifecycle": {"preStop": host("tcpSocket")}}),
        json!({"securityContext": null}),
        json!({"securityContext": {"privileged": true}}),
        json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
        json!({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}),
        json!({"securityContext": {"capabilities": {"add": ["KILL"]}}}),
        json!({"securityContext": {"capabilities": null}}),
        json!({"securityContext": {"procMount": "Unmasked"}}),
        json!({"securityContext": {"seccompProfile": null}}),
        json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
        json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
        json!({"securityContext": {"seLinuxOptions": {"type": "x"}}}),
        json!({"securityContext": {"runAsUser": 0}}),
        json!({"securityContext": {"runAsNonRoot": false}}),
        json!({"securityContext": {"allowPrivilegeEscalation": true}}),
    ];
    let in_spec = spec.into_iter().map(|change| json!({"spec": change}));
    let in_containers = container.into_iter().flat_map(|change| {
        ["containers", "initContainers"].map(|list| {
            let mut one = careful()["spec"][list][0].clone();
            json_patch::merge(&mut one, &change);
            json!({"spec": {list: [one]}})
        })
    });
    pod.into_iter().chain(in_spec).chain(in_containers).collect()
}

fn policies() -> Vec<TranslationPolicy> {
    let levels = [PodSecurity::Privileged, PodSecurity::Baseline, PodSecurity::Restricted];
    let of_level = levels.map(|pod_security| TranslationPolicy {
        namespaces: NamespaceMapping::Map(BTreeMap::from([("team".to_owned(), "team".to_owned())])),
        pod_security,
        ..TranslationPolicy::default()
    });
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let everything = TranslationPolicy {
        pod_security: PodSecurity::Privileged,
        access: ApiAccess::Lower,
        allowed: AllowedChoices {
            api_access: true,
            schedulers: names(&["x"]),
            volume_drivers: names(&["d", "nfs"]),
            ..AllowedChoices::default()
        },
        ..TranslationPolicy::default()
    };
    of_level.into_iter().chain([everything]).collect()
}

#[test]
fn a_pod_is_translated_from_what_nodes_see_as_from_the_whole_pod() {
    let owner = OwnerId { origin: "o".to_owned(), node: "vk".to_owned() };
    let changes = std::iter::once(json!({})).chain(rejected());
    for change in changes {
        let mut upper = careful();
        json_patch::merge(&mut upper, &change);
        let upper: Pod = serde_json::from_value(upper).unwrap();
        let mut rejections = 0;
        for policy in policies() {
            let lower = |pod: &Pod| {
                translate(pod, &owner, &policy, &ClusterClasses::default()).map(|lower| lower.pod)
            };
            let (whole, seen) = (lower(&upper), lower(&disclosed(&upper)));
            rejections += usize::from(whole.is_err());
            assert_eq!(
                seen.map(|pod| pod.spec),
                whole.map(|pod| disclosed(&pod).spec),
                "{change}: {policy:?}"
            );
        }
        assert_eq!(rejections > 0, change != json!({}), "{change}");
    }
}
