//! Service accounts, tokens, and what containers are told of themselves.

use super::*;

/// As the admission of a cluster makes it.
fn with_token(more: &Value) -> Pod {
    let mount = json!({"name": "kube-api-access-x2x4b", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    let mut volumes = vec![json!({"name": "kube-api-access-x2x4b", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt"}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]}})];
    volumes.extend(more.as_array().unwrap().iter().cloned());
    let mounts: Vec<Value> = more
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap())}))
        .collect();
    let mut all = vec![mount.clone()];
    all.extend(mounts);
    pod(json!({
        "serviceAccountName": "builder", "serviceAccount": "builder",
        "containers": [{"name": "web", "volumeMounts": all}],
        "initContainers": [{"name": "init", "volumeMounts": [mount]}],
        "volumes": volumes,
    }))
}

#[test]
fn the_lower_cluster_gives_its_own_token_to_the_account_of_the_same_name() {
    let lower = spec_by(&with_token(&json!([])), &Policy::default());
    assert_eq!(lower["serviceAccountName"], "builder");
    assert_eq!(lower["volumes"], Value::Null);
    assert_eq!(lower["containers"][0]["volumeMounts"], Value::Null);
    assert_eq!(lower["initContainers"][0]["volumeMounts"], Value::Null, "also of init containers");
    assert_eq!(lower["automountServiceAccountToken"], Value::Null, "so that its admission mounts one");
}

#[test]
fn a_pod_without_access_has_the_account_that_may_nothing_and_no_token() {
    let more = json!([
        {"name": "vault", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}},
        {"name": "mixed", "projected": {"sources": [
            {"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}},
        ]}},
        {"name": "empty", "projected": {"sources": []}},
    ]);
    let policy = Policy { access: Access::None, ..Policy::default() };
    let lower = spec_by(&with_token(&more), &policy);
    assert_eq!(lower["serviceAccountName"], "default");
    assert_eq!(lower["automountServiceAccountToken"], false);
    assert_eq!(
        lower["volumes"],
        json!([
            {"name": "mixed", "projected": {"sources": [{"secret": {"name": "s"}}]}},
            {"name": "empty", "projected": {"sources": []}},
        ])
    );
    assert_eq!(
        lower["containers"][0]["volumeMounts"],
        json!([{"name": "mixed", "mountPath": "/mixed"}, {"name": "empty", "mountPath": "/empty"}])
    );
    let kept = spec_by(&with_token(&more), &Policy::default());
    assert_eq!(kept["volumes"], more, "with the lower cluster's account they are served there");
}

#[test]
fn a_pod_says_for_itself_which_access_it_has() {
    for (said, of_operator, account) in
        [("none", Access::Lower, "default"), ("lower", Access::None, "builder")]
    {
        let mut upper = with_token(&json!([]));
        annotate(&mut upper, names::API_ACCESS, said);
        let policy = Policy { access: of_operator, ..Policy::default() };
        assert_eq!(spec_by(&upper, &policy)["serviceAccountName"], account, "{said}");
    }
    for said in ["upper", "LowerOverrides", ""] {
        let mut upper = pod(json!({}));
        annotate(&mut upper, names::API_ACCESS, said);
        let why = refused(&upper, &Policy::default());
        assert!(why.contains(names::API_ACCESS) && why.contains(&format!("{said:?}")), "{why}");
    }
}

#[test]
fn volumes_that_are_only_called_like_tokens_are_the_users() {
    let volumes = json!([
        {"name": "kube-api-access-log", "emptyDir": {}},
        {"name": "default-token-cache", "emptyDir": {}},
        {"name": "default-tokens", "secret": {"secretName": "s"}},
    ]);
    let lower = spec_by(&pod(json!({"volumes": volumes})), &Policy::default());
    assert_eq!(lower["volumes"], volumes);
    let old = json!([{"name": "default-token-x2x4b", "secret": {"secretName": "default-token-x2x4b"}}]);
    assert_eq!(spec_by(&pod(json!({"volumes": old})), &Policy::default())["volumes"], Value::Null);
}

fn env_of(paths: &[&str]) -> Value {
    let fields = paths
        .iter()
        .map(|path| json!({"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}));
    Value::Array(fields.collect())
}

fn with_env(paths: &[&str]) -> Pod {
    let env = env_of(paths);
    pod(json!({
        "serviceAccountName": "builder",
        "containers": [{"name": "web", "env": env}],
        "initContainers": [{"name": "init", "env": env}],
    }))
}

#[test]
fn what_a_container_is_told_of_its_pod_is_what_holds_above() {
    let paths = ["metadata.namespace", "metadata.uid", "spec.serviceAccountName", "metadata.name"];
    let policy = Policy { access: Access::None, ..mapped(&[("shop", "team-a")]) };
    let lower = spec_by(&with_env(&paths), &policy);
    for containers in ["containers", "initContainers"] {
        let env = &lower[containers][0]["env"];
        assert_eq!(env[0], json!({"name": "A", "value": "shop"}));
        assert_eq!(env[1], json!({"name": "A", "value": "uid-1"}));
        assert_eq!(env[2], json!({"name": "A", "value": "builder"}));
        assert_eq!(env[3], env_of(&paths)[3], "the name is the same");
    }
    let lower = spec_by(&with_env(&paths), &Policy::default());
    let env = &lower["containers"][0]["env"];
    assert_eq!((&env[0], &env[2]), (&env_of(&paths)[0], &env_of(&paths)[2]), "what does not differ is left");
}

#[test]
fn what_only_the_lower_kubelet_knows_is_left_to_it() {
    let paths = ["spec.nodeName", "status.podIP", "status.hostIP", "status.podIPs", "metadata.labels['app']"];
    let lower = spec_by(&with_env(&paths), &mapped(&[("shop", "team-a")]));
    assert_eq!(lower["containers"][0]["env"], env_of(&paths));
    let resource =
        json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}]);
    let upper = pod(json!({"containers": [{"name": "web", "env": resource}]}));
    assert_eq!(spec_by(&upper, &Policy::default())["containers"][0]["env"], resource);
}

#[test]
fn a_label_that_stays_above_is_still_told_and_never_expanded() {
    let paths =
        ["metadata.labels['pod-group.scheduling.sigs.k8s.io']", "metadata.annotations['clusterSelector']"];
    let mut upper = with_env(&paths);
    label(&mut upper, "pod-group.scheduling.sigs.k8s.io", "group");
    annotate(&mut upper, names::CLUSTER_SELECTOR, r#"{"nodeSelector": {"a": "$(HOME)"}}"#);
    let lower = spec_by(&upper, &Policy::default());
    assert_eq!(lower["containers"][0]["env"][0]["value"], "group");
    assert_eq!(lower["containers"][0]["env"][1]["value"], r#"{"nodeSelector": {"a": "$$(HOME)"}}"#);
}

#[test]
fn files_about_the_pod_say_what_holds_above() {
    let item = |path: &str| json!({"path": "f", "fieldRef": {"fieldPath": path}});
    let items = json!([item("metadata.namespace"), item("metadata.uid"), item("metadata.labels")]);
    let upper = pod(json!({"volumes": [
        {"name": "a", "downwardAPI": {"items": items}},
        {"name": "b", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
    ]}));
    let expected = json!([
        item("metadata.annotations['multicluster.virtual-kubelet.io/origin-namespace']"),
        item("metadata.labels['multicluster.virtual-kubelet.io/origin-uid']"),
        item("metadata.labels"),
    ]);
    let lower = spec_by(&upper, &mapped(&[("shop", "team-a")]));
    assert_eq!(lower["volumes"][0]["downwardAPI"]["items"], expected);
    assert_eq!(lower["volumes"][1]["projected"]["sources"][0]["downwardAPI"]["items"], expected);
    let same = spec_by(&upper, &Policy::default());
    assert_eq!(same["volumes"][0]["downwardAPI"]["items"][0], items[0]);
}
