//! Lower admission of translated pods and their updates. The two clusters are two namespaces here, which is all that admission sees of
//! them.

use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use vk_provider_cluster::{
    names::{self, NamespaceMapping, OwnerId},
    translate::{Accounts, AllowedChoices, ApiAccess, ClusterClasses, TranslationPolicy, translate, update},
};
use vk_testing::{ControlPlane, control_plane::Options};

struct TranslatedPod {
    upper: Api<Pod>,
    lower: Api<Pod>,
    policy: TranslationPolicy,
    owner: OwnerId,
}

impl TranslatedPod {
    async fn of(cluster: &ControlPlane, client: &Client) -> Self {
        let (above, below) =
            (cluster.namespace("above").await.unwrap(), cluster.namespace("below").await.unwrap());
        for namespace in [above.name(), below.name()] {
            let account: ServiceAccount =
                serde_json::from_value(json!({"metadata": {"name": "builder"}})).unwrap();
            let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
            accounts.create(&PostParams::default(), &account).await.unwrap();
        }
        let map = [(above.name().to_owned(), below.name().to_owned())].into();
        Self {
            upper: Api::namespaced(client.clone(), above.name()),
            lower: Api::namespaced(client.clone(), below.name()),
            policy: TranslationPolicy {
                namespaces: NamespaceMapping::Map(map),
                access: ApiAccess::Lower,
                accounts: Accounts { default: Some("builder".to_owned()), ..Accounts::default() },
                allowed: AllowedChoices {
                    tolerations: ["gpu", "spot"]
                        .map(|key| serde_json::from_value(json!({"key": key, "operator": "Exists"})).unwrap())
                        .into(),
                    ..AllowedChoices::default()
                },
                ..TranslationPolicy::default()
            },
            owner: OwnerId { origin: "upper".to_owned(), node: "vk-node".to_owned() },
        }
    }

    /// Creates an upper pod and its lower pod.
    async fn make(&self, pod: Value) -> (Pod, Pod) {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let upper = self.upper.create(&PostParams::default(), &pod).await.unwrap();
        let translated = translate(&upper, &self.owner, &self.policy, &ClusterClasses::default()).unwrap();
        let lower = self.lower.create(&PostParams::default(), &translated.pod).await.unwrap();
        (upper, lower)
    }

    async fn change(&self, part: Option<&str>, patch: Value) -> Pod {
        write(&self.upper, part, &patch).await
    }

    /// Sends the updates and returns the resulting lower pod.
    async fn bring_down(&self) -> Pod {
        let (upper, lower) = (self.upper.get("web").await.unwrap(), self.lower.get("web").await.unwrap());
        let update = update(&upper, &lower, &self.owner, &self.policy, &ClusterClasses::default())
            .unwrap()
            .expect("an update");
        for (part, patch) in [
            (None, update.metadata_and_spec),
            (Some("ephemeralcontainers"), update.ephemeral_containers),
            (Some("resize"), update.resize),
            (None, update.resized),
        ] {
            if let Some(patch) = patch {
                write(&self.lower, part, &patch).await;
            }
        }
        let lower = self.lower.get("web").await.unwrap();
        assert_eq!(self.pending(&upper, &lower), None, "once is enough");
        lower
    }

    fn pending(&self, upper: &Pod, lower: &Pod) -> Option<vk_provider_cluster::translate::Update> {
        update(upper, lower, &self.owner, &self.policy, &ClusterClasses::default()).unwrap()
    }
}

async fn write(pods: &Api<Pod>, part: Option<&str>, patch: &Value) -> Pod {
    let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
    match part {
        Some(part) => pods.patch_subresource(part, "web", &params, &patch).await,
        None => pods.patch("web", &params, &patch).await,
    }
    .unwrap_or_else(|error| panic!("{part:?} {patch:?}: {error}"))
}

fn web(more: &Value) -> Value {
    let mut spec = json!({
        "nodeName": "vk-node",
        "nodeSelector": {"type": "virtual-kubelet"},
        "serviceAccountName": "builder",
        "schedulerName": "above",
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": "web"}},
            "matchLabelKeys": ["pod-template-hash"],
            "mismatchLabelKeys": ["tenant"],
        }]}},
        "readinessGates": [{"conditionType": "example.com/ready"}],
        "containers": [{
            "name": "web", "image": "web:1",
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            "env": [
                {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "about", "mountPath": "/about"}],
        }],
        "initContainers": [{"name": "init", "image": "init:1"}],
        "volumes": [
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            }}}},
            {"name": "about", "downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
                {"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}},
            ]}},
        ],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "metadata": {"name": "web", "labels": {"app": "web", "pod-template-hash": "abc", "tenant": "t"}},
        "spec": spec,
    })
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_defaulted_pod_and_its_updates_are_accepted_by_the_lower_api_server() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let client = cluster.admin().unwrap();
    let pair = TranslatedPod::of(&cluster, &client).await;
    // A resize to more than the node has is deferred.
    let node =
        json!({"metadata": {"name": "vk-node"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    Api::all(client).create(&PostParams::default(), &node).await.unwrap();
    let (upper, lower) = pair.make(web(&json!({}))).await;
    let tokens = |pod: &Pod| -> Vec<String> {
        let volumes = pod.spec.as_ref().unwrap().volumes.iter().flatten();
        volumes
            .map(|volume| volume.name.clone())
            .filter(|name| name.starts_with("kube-api-access-"))
            .collect()
    };
    assert_eq!((tokens(&upper).len(), tokens(&lower).len()), (1, 1));
    assert_ne!(tokens(&upper), tokens(&lower), "each cluster's own");
    assert_eq!(pair.pending(&upper, &lower), None, "what admission added is no change");

    let mut tolerations = upper.spec.as_ref().unwrap().tolerations.clone().unwrap();
    tolerations.push(serde_json::from_value(json!({"key": "spot", "operator": "Exists"})).unwrap());
    pair.change(
        None,
        json!({
            "metadata": {"labels": {"tier": "gold", "tenant": null}, "annotations": {"note": "1"}},
            "spec": {
                "activeDeadlineSeconds": 600,
                "containers": [{"name": "web", "image": "web:2"}],
                "initContainers": [{"name": "init", "image": "init:2"}],
                "tolerations": tolerations,
            },
        }),
    )
    .await;
    let debug = json!({"spec": {"ephemeralContainers": [{
        "name": "debug", "image": "busybox", "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": tokens(&upper)[0], "mountPath": "/token"}],
    }]}});
    pair.change(Some("ephemeralcontainers"), debug).await;
    let more = json!({"spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": "2"}}}]}});
    pair.change(Some("resize"), more).await;
    let lower = pair.bring_down().await;

    assert_eq!(names::label(&lower.metadata, "tier"), Some("gold"));
    assert_eq!(names::label(&lower.metadata, "tenant"), None);
    assert_eq!(names::annotation(&lower.metadata, "note"), Some("1"));
    let spec = serde_json::to_value(lower.spec.unwrap()).unwrap();
    assert_eq!(spec["activeDeadlineSeconds"], 600);
    assert_eq!(
        (&spec["containers"][0]["image"], &spec["initContainers"][0]["image"]),
        (&json!("web:2"), &json!("init:2"))
    );
    assert_eq!(spec["containers"][0]["resources"]["requests"], json!({"cpu": "2", "memory": "1Gi"}));
    assert_eq!(spec["ephemeralContainers"][0]["name"], "debug");
    assert_eq!(spec["ephemeralContainers"][0].get("volumeMounts"), None);
    let keys: Vec<&str> =
        spec["tolerations"].as_array().unwrap().iter().filter_map(|one| one["key"].as_str()).collect();
    assert!(
        keys.contains(&"gpu") && keys.contains(&"spot") && !keys.contains(&"virtual-kubelet.io/provider"),
        "{keys:?}"
    );
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_without_access_has_no_lower_token() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let client = cluster.admin().unwrap();
    let mut pair = TranslatedPod::of(&cluster, &client).await;
    pair.policy.access = ApiAccess::None;
    let volume = json!({"volumes": [
        {"name": "scratch", "emptyDir": {}}, {"name": "about", "emptyDir": {}},
        {"name": "vault", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}},
    ]});
    let (upper, lower) = pair.make(web(&volume)).await;
    let spec = lower.spec.as_ref().unwrap();
    let volumes: Vec<&str> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    assert_eq!(volumes, ["scratch", "about"]);
    assert_eq!(spec.service_account_name.as_deref(), Some("builder"));
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(pair.pending(&upper, &lower), None);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_patch_for_another_pod_of_the_same_name_is_rejected() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let client = cluster.admin().unwrap();
    let pair = TranslatedPod::of(&cluster, &client).await;
    let (_, mut lower) = pair.make(web(&json!({}))).await;
    let upper = pair.change(None, json!({"metadata": {"labels": {"tier": "gold"}}})).await;
    lower.metadata.uid = Some("of-a-predecessor".to_owned());
    let patch = pair.pending(&upper, &lower).unwrap().metadata_and_spec.unwrap();
    let refused = pair.lower.patch("web", &PatchParams::default(), &Patch::Strategic(&patch)).await;
    let Err(kube::Error::Api(status)) = refused else { panic!("{refused:?}") };
    assert!(status.code == 422 && status.message.contains("metadata.uid"), "{status:?}");
}
