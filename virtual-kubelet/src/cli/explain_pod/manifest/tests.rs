use super::*;

fn names(text: &str) -> Vec<String> {
    let manifest = parse(text, "m.yaml", "default").unwrap();
    let line = |workload: &Workload| {
        let pod = workload.pod.metadata.name.as_deref().unwrap();
        format!("{} {}/{} {pod}", workload.kind, workload.namespace, workload.name)
    };
    manifest.workloads.iter().map(line).collect()
}

fn problems(text: &str) -> Vec<String> {
    let problems = parse(text, "m.yaml", "default").unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

const TEMPLATE: &str = "{metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}";

#[test]
fn everything_with_a_pod_template_makes_pods() {
    let kinds =
        ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController", "Rollout"];
    let pod = "kind: Pod\nmetadata: {name: p, namespace: shop}\nspec: {containers: [{name: c}]}\n".to_owned();
    let controllers =
        kinds.map(|kind| format!("kind: {kind}\nmetadata: {{name: w}}\nspec: {{template: {TEMPLATE}}}\n"));
    let job = format!("{{spec: {{template: {TEMPLATE}}}}}");
    let others = [
        format!("kind: CronJob\nmetadata: {{name: nightly}}\nspec: {{jobTemplate: {job}}}\n"),
        format!("kind: PodTemplate\nmetadata: {{name: t}}\ntemplate: {TEMPLATE}\n"),
    ];
    let text = [&[pod][..], &controllers, &others].concat().join("---\n");
    assert_eq!(
        names(&text),
        [
            "Pod shop/p p",
            "Deployment default/w w-xxxxxxxxxx-xxxxx",
            "ReplicaSet default/w w-xxxxx",
            "StatefulSet default/w w-0",
            "DaemonSet default/w w-xxxxx",
            "Job default/w w-xxxxx",
            "ReplicationController default/w w-xxxxx",
            "Rollout default/w w-xxxxx",
            "CronJob default/nightly nightly-00000000-xxxxx",
            "PodTemplate default/t t-xxxxx",
        ]
    );
}

#[test]
fn lists_empty_documents_and_other_kinds_are_read() {
    let text = "---\n# nothing\n---\nkind: List\nitems:\n- kind: Service\n  metadata: {name: s}\n- kind: Pod\n  metadata: {generateName: p-}\n  spec: {containers: [{name: c}]}\n---\n";
    assert_eq!(names(text), ["Pod default/p-xxxxx p-xxxxx"]);
    assert_eq!(parse(text, "m.yaml", "default").unwrap().others, ["Service s"]);
    assert_eq!(parse("", "m.yaml", "default").unwrap(), Manifest::default());
    let json = r#"{"kind": "PodList", "items": [{"kind": "Pod", "metadata": {"name": "j"}, "spec": {"containers": [{"name": "c"}]}}]}"#;
    assert_eq!(names(json), ["Pod default/j j"]);
}

#[test]
fn quantities_may_be_numbers_as_for_the_api_server() {
    let text = "kind: Pod\nmetadata: {name: p}\nspec:\n  overhead: {cpu: 1}\n  volumes: [{name: v, emptyDir: {sizeLimit: 1000}}]\n  containers:\n  - {name: c, resources: {requests: {cpu: 0.5, memory: 1Gi}, limits: {cpu: 2}}}\n";
    let manifest = parse(text, "m.yaml", "default").unwrap();
    let spec = serde_json::to_value(manifest.workloads[0].pod.spec.as_ref().unwrap()).unwrap();
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"requests": {"cpu": "0.5", "memory": "1Gi"}, "limits": {"cpu": "2"}})
    );
    assert_eq!(
        (&spec["overhead"]["cpu"], &spec["volumes"][0]["emptyDir"]["sizeLimit"]),
        (&json!("1"), &json!("1000"))
    );
}

#[test]
fn limits_without_requests_are_requests_as_for_the_api_server() {
    let text = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}}}]}\n";
    let manifest = parse(text, "m.yaml", "default").unwrap();
    let spec = serde_json::to_value(manifest.workloads[0].pod.spec.as_ref().unwrap()).unwrap();
    assert_eq!(spec["containers"][0]["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
}

#[test]
fn the_pods_of_a_stateful_set_have_its_claims() {
    let text = format!(
        "kind: StatefulSet\nmetadata: {{name: db}}\nspec: {{volumeClaimTemplates: [{{metadata: {{name: data}}}}], template: {TEMPLATE}}}\n"
    );
    let manifest = parse(&text, "m.yaml", "default").unwrap();
    let volumes = manifest.workloads[0].pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    assert_eq!(volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name, "data-db-0");
}

#[test]
fn errors_say_in_which_document_and_field() {
    for (text, words) in [
        ("kind: Pod\nmetadata: [", "m.yaml: "),
        ("just text", "m.yaml: is not an object of Kubernetes"),
        ("kind: Pod\n---\nmetadata: {}", "m.yaml: document 2: `kind` is missing"),
        ("kind: Pod\nspec: {containers: []}", "m.yaml: Pod: metadata.name: is missing"),
        (
            "kind: Pod\nmetadata: {name: no}\nspec: {containers: []}",
            "m.yaml: Pod: metadata.name: is not text",
        ),
        ("kind: Pod\nmetadata: {name: p}", "m.yaml: Pod default/p: spec: is missing"),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: []}",
            "Pod default/p: spec.containers: is missing or empty",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{image: i}]}",
            "spec.containers[0].name: is missing",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, args: x}]}",
            "spec.containers[0].args: invalid type",
        ),
        (
            "kind: Pod\nmetadata: {name: p, labels: {a: 1}}\nspec: {containers: [{name: c}]}",
            "metadata.labels.a: invalid type",
        ),
        (
            "kind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{name: c, comand: [x]}]}}}",
            "m.yaml: Job default/j: spec.template.spec.containers[0].comand: is not a field",
        ),
        ("kind: List\nitems: [{kind: Pod}]", "m.yaml: items[0]: Pod: metadata.name"),
    ] {
        let found = problems(text);
        assert!(found.iter().any(|problem| problem.contains(words)), "{words:?} in {found:?}");
    }
    let syntax = problems("kind: Pod\nmetadata: {name: p\nspec: x: y");
    assert!(syntax[0].contains("line "), "{syntax:?}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = "kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: c, x: 1, y: 2}]}\n";
    assert_eq!(problems(text).len(), 3, "{:?}", problems(text));
}
