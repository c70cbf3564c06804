//! Service accounts, tokens and the downward API.

use super::*;

/// A pod with the volume that the admission injects.
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
fn the_lower_cluster_injects_its_own_token() {
    let lower = spec_by(&with_token(&json!([])), &permissive());
    assert_eq!(lower["serviceAccountName"], "builder");
    assert_eq!(lower["volumes"], Value::Null);
    assert_eq!(lower["containers"][0]["volumeMounts"], Value::Null);
    assert_eq!(lower["initContainers"][0]["volumeMounts"], Value::Null, "also of init containers");
    assert_eq!(lower["automountServiceAccountToken"], Value::Null, "so that its admission mounts one");
}

#[test]
fn a_pod_without_access_has_an_account_without_rights_and_no_token() {
    let more = json!([
        {"name": "vault", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}},
        {"name": "mixed", "projected": {"sources": [
            {"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}},
        ]}},
        {"name": "empty", "projected": {"sources": []}},
    ]);
    let lower = spec_by(&with_token(&more), &TranslationPolicy::default());
    assert_eq!(lower["serviceAccountName"], owner().account_name());
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
    let kept = spec_by(&with_token(&more), &permissive());
    assert_eq!(kept["volumes"], more, "with the lower cluster's account they are served there");
}

#[test]
fn the_annotation_of_the_pod_can_always_give_up_access_and_get_it_where_that_is_allowed() {
    let token = |said: &str, policy: &TranslationPolicy| {
        let mut upper = with_token(&json!([]));
        annotate(&mut upper, names::API_ACCESS, said);
        spec_by(&upper, policy)["automountServiceAccountToken"] != false
    };
    let allowed = AllowedChoices { api_access: true, ..AllowedChoices::default() };
    let on_request = TranslationPolicy { allowed, ..TranslationPolicy::default() };
    assert!(!token("none", &permissive()) && !token("none", &TranslationPolicy::default()));
    assert!(token("lower", &permissive()) && token("lower", &on_request));
    let mut upper = with_token(&json!([]));
    annotate(&mut upper, names::API_ACCESS, "lower");
    let why = refused(&upper, &TranslationPolicy::default());
    assert!(why.contains("`allow.apiAccess: true`"), "{why}");
    for said in ["upper", "Lower", ""] {
        let mut upper = pod(json!({}));
        annotate(&mut upper, names::API_ACCESS, said);
        let why = refused(&upper, &TranslationPolicy::default());
        assert!(why.contains(names::API_ACCESS) && why.contains(&format!("{said:?}")), "{why}");
    }
}

#[test]
fn the_account_is_one_that_the_operator_named() {
    let account = |upper: &str, accounts: &Accounts| {
        let policy = TranslationPolicy { accounts: accounts.clone(), ..permissive() };
        let upper = pod(json!({"serviceAccountName": upper}));
        spec_by(&upper, &policy)["serviceAccountName"].as_str().unwrap().to_owned()
    };
    let nobody = Accounts::default();
    for upper in ["default", "builder", "cluster-admin"] {
        assert_eq!(account(upper, &nobody), owner().account_name(), "{upper}");
    }
    let one = Accounts { default: Some("tenant".to_owned()), ..Accounts::default() };
    assert_eq!(account("builder", &one), "tenant");
    let named = [("builder", "maker"), ("shop/builder", "shop-maker"), ("other/cleaner", "cleaner")];
    let some = Accounts { by_upper: named.map(|(a, b)| (a.to_owned(), b.to_owned())).into(), ..one };
    assert_eq!(account("builder", &some), "shop-maker", "the pod's namespace is shop");
    assert_eq!(account("cleaner", &some), "tenant");
    let other = OwnerId { origin: "other".to_owned(), ..owner() };
    assert_ne!(owner().account_name(), other.account_name(), "each upper cluster has its own");
}

#[test]
fn user_volumes_named_like_tokens_are_kept() {
    let volumes = json!([
        {"name": "kube-api-access-log", "emptyDir": {}},
        {"name": "default-token-cache", "emptyDir": {}},
        {"name": "default-tokens", "secret": {"secretName": "s"}},
    ]);
    let lower = spec_by(&pod(json!({"volumes": volumes})), &TranslationPolicy::default());
    assert_eq!(lower["volumes"], volumes);
    let old = json!([{"name": "default-token-x2x4b", "secret": {"secretName": "default-token-x2x4b"}}]);
    assert_eq!(spec_by(&pod(json!({"volumes": old})), &TranslationPolicy::default())["volumes"], Value::Null);
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
fn the_downward_api_shows_the_upper_values() {
    let paths = ["metadata.namespace", "metadata.uid", "spec.serviceAccountName", "metadata.name"];
    let lower = spec_by(&with_env(&paths), &mapped(&[("shop", "team-a")]));
    for containers in ["containers", "initContainers"] {
        let env = &lower[containers][0]["env"];
        assert_eq!(env[0], json!({"name": "A", "value": "shop"}));
        assert_eq!(env[1], json!({"name": "A", "value": "uid-1"}));
        assert_eq!(env[2], json!({"name": "A", "value": "builder"}));
        assert_eq!(env[3], env_of(&paths)[3], "the name is the same");
    }
    let lower = spec_by(&with_env(&paths), &permissive());
    let env = &lower["containers"][0]["env"];
    assert_eq!((&env[0], &env[2]), (&env_of(&paths)[0], &env_of(&paths)[2]), "what does not differ is left");
}

#[test]
fn fields_that_only_the_lower_kubelet_knows_stay_references() {
    let paths = ["spec.nodeName", "status.podIP", "status.hostIP", "status.podIPs", "metadata.labels['app']"];
    let lower = spec_by(&with_env(&paths), &mapped(&[("shop", "team-a")]));
    assert_eq!(lower["containers"][0]["env"], env_of(&paths));
    let resource =
        json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}]);
    let upper = pod(json!({"containers": [{"name": "web", "env": resource}]}));
    assert_eq!(spec_by(&upper, &TranslationPolicy::default())["containers"][0]["env"], resource);
}

#[test]
fn an_ignored_label_is_still_shown_and_never_expanded() {
    let paths =
        ["metadata.labels['pod-group.scheduling.sigs.k8s.io']", "metadata.annotations['clusterSelector']"];
    let mut upper = with_env(&paths);
    label(&mut upper, "pod-group.scheduling.sigs.k8s.io", "group");
    annotate(&mut upper, names::CLUSTER_SELECTOR, r#"{"nodeSelector": {"a": "$(HOME)"}}"#);
    let lower = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!(lower["containers"][0]["env"][0]["value"], "group");
    assert_eq!(lower["containers"][0]["env"][1]["value"], r#"{"nodeSelector": {"a": "$$(HOME)"}}"#);
}

#[test]
fn downward_api_files_show_the_upper_values() {
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
    let same = spec_by(&upper, &TranslationPolicy::default());
    assert_eq!(same["volumes"][0]["downwardAPI"]["items"][0], items[0]);
}
