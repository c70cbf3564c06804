use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::{Quantity, inventory::Price, resolve::Origin};

use super::*;
use crate::plan::{
    policy::{Choices, PolicyTable, Row},
    size::{SizeRule, SizeTable, group_size, requested},
};

const TABLE: PolicyTable = PolicyTable {
    cloud: "Test",
    rows: &[
        Row::native("PodSpec.containers", "Container.N"),
        Row::native("PodSpec.initContainers", "InitContainer.N"),
        Row::native("PodSpec.volumes", "Volume.N"),
        Row::native("Container.name", "Name"),
        Row::native("Container.args", "Arg"),
        Row::native("Container.env", "EnvironmentVar.N"),
        Row::native("Container.envFrom", "EnvironmentVar.N"),
        Row::native("Container.resources", "Cpu, Memory"),
        Row::native("Container.volumeMounts", "VolumeMount.N"),
        Row::native("VolumeMount.name", "Name"),
        Row::native("VolumeMount.mountPath", "MountPath"),
        Row::choice_emulated(
            "Container.startupProbe",
            "liveness probe starts later",
            "use initialDelaySeconds",
        ),
        Row::ignored("Container.resources.limits", "the group is limited, not the container"),
        Row::elsewhere("PodSpec.topologySpreadConstraints", "handled by the scheduler"),
        Row::refused("PodSpec.hostNetwork", "remove it"),
        Row::native("Volume.name", "Name"),
        Row::emulated("Volume.configMap", "files of the group's creation"),
        Row::emulated("Volume.secret", "files of the group's creation"),
    ],
};

const SIZES: SizeTable =
    SizeTable { rows: &[(2000, &[4096, 8192])], default_cpu_milli: 2000, default_memory_mib: 4096 };

fn offline(spec: Value) -> OfflinePod {
    let mut pod = json!({"metadata": {"name": "web", "namespace": "shop"}});
    pod["spec"] = spec;
    let pod: Pod = serde_json::from_value(pod).unwrap();
    OfflinePod::new(Arc::new(pod))
}

fn explain(pod: &OfflinePod, more: impl FnOnce(&mut crate::plan::Diagnostics)) -> Explanation {
    let review = TABLE.review(&pod.resolved.pod, &Choices::default());
    let mut diagnostics = review.diagnostics();
    let size = group_size(&pod.resolved.pod, &SizeRule::Table(SIZES), &mut diagnostics);
    more(&mut diagnostics);
    let mut plan = Plan::new(());
    plan.size = size.map(|size| size.effective);
    let outcome = diagnostics.finish(plan);
    let price = Price { per_hour: 0.1224, currency: "USD".into() };
    Source {
        review: &review,
        outcome: outcome.as_ref(),
        requested: Some(&requested(&pod.resolved.pod)),
        given: None,
        size_reason: String::new(),
        price: Some(PriceEstimate::Known { price, source: "list price".into() }),
    }
    .explanation(pod)
}

fn rows(explanation: &Explanation) -> Vec<(&str, String, &str, bool)> {
    let rows = explanation.fields.iter();
    rows.map(|row| (&*row.field, row.policy.to_string(), &*row.result, row.warning)).collect()
}

fn web() -> Value {
    json!({
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "initContainers": [{"name": "setup", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
        "containers": [{
            "name": "web", "args": ["a"], "startupProbe": {"tcpSocket": {"port": 80}},
            "resources": {"requests": {"cpu": "1500m", "memory": "3Gi"}, "limits": {"cpu": "2"}},
        }],
    })
}

#[test]
fn the_messages_of_the_translation_take_the_place_of_those_of_the_policy() {
    let explanation = explain(&offline(web()), |diagnostics| {
        diagnostics.warn("spec.containers[web].startupProbe", "liveness probe starts 60 s later");
        diagnostics.warn("metadata.annotations[x]", "did you mean y?");
    });
    let expected = [
        ("spec.containers[web].args", "native", "Arg", false),
        ("spec.containers[web].name", "native", "Name", false),
        ("spec.containers[web].resources", "native", "Cpu, Memory", false),
        ("spec.containers[web].resources.limits", "ignored", "the group is limited, not the container", true),
        ("spec.containers[web].startupProbe", "emulated", "liveness probe starts 60 s later", true),
        ("spec.initContainers[setup].name", "native", "Name", false),
        ("spec.initContainers[setup].resources", "native", "Cpu, Memory", false),
        ("spec.topologySpreadConstraints", "elsewhere", "handled by the scheduler", false),
        ("metadata.annotations[x]", "ignored", "did you mean y?", true),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(field, policy, result, warns)| (*field, (*policy).to_owned(), *result, *warns))
        .collect();
    assert_eq!(rows(&explanation), expected);
    assert!(explanation.runs());
    assert_eq!(explanation.warnings().count(), 3);
}

#[test]
fn a_size_has_what_was_requested_and_what_is_given() {
    let explanation = explain(&offline(web()), |_| {});
    let size = explanation.size.unwrap();
    assert_eq!(size.requested, list(Resources::new(1500, 3072)));
    assert_eq!(size.init, Some(list(Resources::new(500, 1024))));
    assert_eq!(size.given.unwrap().to_string(), "2-4Gi");
    assert_eq!(size.reason, "next larger size");
    assert!(matches!(explanation.price, Some(PriceEstimate::Known { .. })));
}

#[test]
fn a_pod_that_does_not_run_names_every_refused_field() {
    let mut spec = web();
    spec["hostNetwork"] = json!(true);
    spec["containers"][0]["resources"]["requests"]["cpu"] = json!("64");
    let explanation = explain(&offline(spec), |_| {});
    assert!(!explanation.runs());
    let refused: Vec<_> = explanation.refused().map(|one| one.field.as_str()).collect();
    assert_eq!(refused, ["spec.hostNetwork", "spec.containers[*].resources.requests"]);
    let size = explanation.size.unwrap();
    assert_eq!((size.given, &*size.reason), (None, "larger than every size"));
    assert_eq!(size.requested["cpu"], Quantity::units(64));
}

#[test]
fn what_a_pod_refers_to_is_named_once_and_not_read() {
    let pod = offline(json!({
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [
            {"name": "config", "configMap": {"name": "web", "items": [{"key": "a", "path": "etc/a", "mode": 256}]}},
            {"name": "keys", "projected": {"sources": [
                {"secret": {"name": "db"}}, {"serviceAccountToken": {"path": "token"}},
            ]}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
        "containers": [{
            "name": "web", "envFrom": [{"configMapRef": {"name": "web"}}],
            "env": [
                {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "URL", "value": "http://$(IP)/$(UNKNOWN)?p=$(PASSWORD)$$(IP)"},
            ],
            "args": ["--name=x", "--ip=$(IP)"],
            "volumeMounts": [{"name": "config", "mountPath": "/etc"}, {"name": "keys", "mountPath": "/keys"}],
        }],
    }));
    let not_read: Vec<_> = pod.not_read.iter().map(ToString::to_string).collect();
    assert_eq!(
        not_read,
        ["ConfigMap shop/web", "PersistentVolumeClaim shop/data", "Secret shop/db", "Secret shop/pull"]
    );
    let inputs = &pod.resolved.containers["web"];
    let url = inputs.env.iter().find(|variable| variable.name == "URL").unwrap();
    assert_eq!((&*url.value, url.origin), ("http:///$(UNKNOWN)?p=$(IP)", Origin::Secret));
    assert!(url.deferred.as_ref().is_some_and(|one| one.field == "status.podIP" && !one.whole));
    let args = inputs.args.as_ref().unwrap();
    assert!(args.deferred.is_some() && args.words == ["--name=x", "--ip="]);
    assert_eq!(pod.resolved.files["config"].files["etc/a"].mode, 0o400);
    assert_eq!(pod.resolved.files["keys"].files["token"].origin, Origin::Secret);
    let usage = file_usage(&pod, &FileLimits { file: 32 << 10, group: 60 << 10 }).unwrap();
    assert_eq!((usage.volumes, usage.bytes, usage.limit), (2, 0, Some(60 << 10)));
}
