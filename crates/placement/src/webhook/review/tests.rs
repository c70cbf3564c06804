//! Answers of the webhook.

use super::*;

fn review(request: Value) -> Vec<u8> {
    let mut whole = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
            "namespace": "shop",
        },
    });
    let Value::Object(fields) = request else { panic!("a request is an object") };
    whole["request"].as_object_mut().unwrap().extend(fields);
    whole.to_string().into_bytes()
}

fn pod(labels: &Value) -> Value {
    json!({
        "metadata": {"generateName": "web-", "labels": labels},
        "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "web", "image": "web:1"}]},
    })
}

fn response(request: Value, opt_in: OptIn) -> Value {
    let answer = respond(&review(request), opt_in, &Settings::default()).unwrap();
    assert_eq!((&answer["apiVersion"], &answer["kind"]), (&json!(API_VERSION), &json!(KIND)));
    answer["response"].clone()
}

fn patch_of(response: &Value) -> json_patch::Patch {
    assert_eq!(response["patchType"], "JSONPatch");
    serde_json::from_slice(&STANDARD.decode(response["patch"].as_str().unwrap()).unwrap()).unwrap()
}

#[test]
fn a_pod_with_the_label_is_converted() {
    let mut pod = pod(&json!({"virtual-pod": "true"}));
    let response = response(json!({"object": pod}), OptIn::Label);
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(true)));
    json_patch::patch(&mut pod, &patch_of(&response)).unwrap();
    assert_eq!(pod["metadata"]["annotations"][names::LOWER_NODES], "disk=ssd");
}

#[test]
fn a_pod_without_labels_is_converted_for_its_namespace_only() {
    let mut unlabelled = pod(&json!({}));
    unlabelled["metadata"].as_object_mut().unwrap().remove("labels");
    for pod in [unlabelled, pod(&json!({"app": "web"})), pod(&json!({"virtual-pod": "false"}))] {
        let alone = response(json!({"object": pod}), OptIn::Label);
        assert_eq!(alone, json!({"uid": "u-1", "allowed": true}));
        let by_namespace = response(json!({"object": pod}), OptIn::Namespace);
        assert!(!patch_of(&by_namespace).is_empty());
    }
}

#[test]
fn exempt_pods_and_updates_are_allowed_unchanged() {
    let pod = pod(&json!({"virtual-pod": "true"}));
    let mut bound = pod.clone();
    bound["spec"]["nodeName"] = json!("n");
    for request in [
        json!({"object": pod, "namespace": "kube-system"}),
        json!({"object": pod, "operation": "UPDATE"}),
        json!({"object": bound}),
    ] {
        assert_eq!(response(request, OptIn::Namespace), json!({"uid": "u-1", "allowed": true}));
    }
}

#[test]
fn what_is_not_converted_is_a_warning() {
    let mut pod = pod(&json!({"virtual-pod": "true"}));
    let term = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
    pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [term("type"), term("gpu")]});
    let response = response(json!({"object": pod}), OptIn::Label);
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("required node affinity: "), "{warning}");
}

#[test]
fn other_objects_are_denied_with_a_message() {
    let deployment = json!({"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}});
    let denied = response(deployment, OptIn::Label);
    assert_eq!((&denied["allowed"], &denied["status"]["code"]), (&json!(false), &json!(400)));
    let message = denied["status"]["message"].as_str().unwrap();
    assert!(message.contains("got Deployment (apps/v1)") && message.contains("resource pods"), "{message}");
    let binding = json!({"subResource": "binding", "object": {}});
    let message = response(binding, OptIn::Label)["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("got Pod (v1, subresource binding)"), "{message}");
    let odd = json!({"object": {"spec": {"containers": 7}}});
    let message = response(odd, OptIn::Label)["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("the pod cannot be read: "), "{message}");
}

#[test]
fn other_requests_are_refused() {
    let refused = |body: &[u8]| respond(body, OptIn::Label, &Settings::default()).unwrap_err().to_string();
    assert!(refused(b"hello").contains("not an AdmissionReview"));
    assert!(refused(b"{}").contains("admission.k8s.io/v1"));
    let old = br#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {}}"#;
    assert!(refused(old).contains("admission.k8s.io/v1beta1"));
    let answer = br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {}}"#;
    assert!(refused(answer).contains("no request"));
}

#[test]
fn what_a_pod_has_no_field_for_is_skipped_and_not_kept() {
    // Nesting that deep is more than a `Value` can hold.
    let nested = format!("{}0{}", "[".repeat(10_000), "]".repeat(10_000));
    let with_nested = |object: &Value| {
        let text = String::from_utf8(review(json!({"object": object}))).unwrap();
        text.replacen("\"generateName\"", &format!("\"other\":{nested},\"generateName\""), 1).into_bytes()
    };
    let whole = with_nested(&pod(&json!({"virtual-pod": "true"})));
    let answer = respond(&whole, OptIn::Label, &Settings::default()).unwrap();
    assert!(!patch_of(&answer["response"]).is_empty());
}
