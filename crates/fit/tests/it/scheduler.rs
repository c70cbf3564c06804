//! The real kube-scheduler decides about generated pods, and fit has to say the same.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    node::v1::RuntimeClass,
};
use kube::{
    Client,
    api::{Api, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vk_fit::{Query, Snapshot};
use vk_provider::ability::Verdict;
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use crate::generator::{PAIR, Pair, RUNTIME_CLASS};

/// The number of pairs, and the first seed.
const PAIRS: &str = "VK_FIT_PAIRS";
const SEED: &str = "VK_SEED";
/// Requests at the same time.
const PARALLEL: usize = 16;
const TIMEOUT: Duration = Duration::from_mins(2);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn object<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// The API server with objects of one kind.
async fn create<T>(api: &Api<T>, value: &Value) -> T
where
    T: Clone + Debug + DeserializeOwned + serde::Serialize,
{
    let created = api.create(&PostParams::default(), &object::<T>(value)).await;
    created.unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// Everything that the pairs need, by kind.
struct Cluster {
    nodes: Api<Node>,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

impl Cluster {
    fn new(client: &Client, namespace: &str) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            pods: Api::namespaced(client.clone(), namespace),
            claims: Api::namespaced(client.clone(), namespace),
            volumes: Api::all(client.clone()),
        }
    }

    /// Writes everything but the pod of a pair, and returns a snapshot of what the API server has then.
    async fn write(&self, pair: &Pair) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for node in &pair.nodes {
            let name = create(&self.nodes, node).await.metadata.name.unwrap();
            // The API server adds a taint that a controller removes as soon as the node is Ready.
            let taints = json!({"spec": {"taints": node["spec"]["taints"]}});
            let node = self.nodes.patch(&name, &PatchParams::default(), &Patch::Merge(taints)).await.unwrap();
            snapshot.apply_node(&node);
        }
        for (pod, status) in &pair.bound {
            let mut pod = create(&self.pods, pod).await;
            if let Some(status) = status {
                let name = pod.metadata.name.unwrap();
                let status = Patch::Merge(json!({"status": status}));
                pod = self.pods.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
            }
            snapshot.apply_pod(&pod);
        }
        if let Some((claim, volume)) = &pair.claim {
            snapshot.apply_volume(&create(&self.volumes, volume).await);
            let name = create(&self.claims, claim).await.metadata.name.unwrap();
            let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
            let claim = self.claims.patch_status(&name, &PatchParams::default(), &bound).await.unwrap();
            snapshot.apply_claim(&claim);
        }
        snapshot
    }

    /// Waits until the scheduler has decided about all pods, and returns them.
    async fn decided(&self, count: usize) -> Vec<Pod> {
        eventually("the scheduler has decided about all pods", TIMEOUT, || async {
            let pods = self.pods.list(&ListParams::default().labels("asked=yes")).await;
            let pods = pods.map_err(|error| error.to_string())?.items;
            let open = pods.iter().filter(|pod| is_bound(pod).is_none()).count();
            if open == 0 && pods.len() == count { Ok(pods) } else { Err(format!("{open} are open")) }
        })
        .await
    }
}

/// Whether the scheduler bound a pod; `None` if it has not decided yet.
fn is_bound(pod: &Pod) -> Option<bool> {
    if pod.spec.as_ref()?.node_name.is_some() {
        return Some(true);
    }
    let conditions = pod.status.as_ref()?.conditions.as_deref().unwrap_or_default();
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.reason.as_deref() == Some("Unschedulable")).then_some(false)
}

fn message(pod: &Pod) -> String {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter_map(|condition| condition.message.clone()).collect::<Vec<_>>().join("; ")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: make test"]
async fn a_pod_fits_exactly_when_the_real_scheduler_binds_it() {
    let (count, first) = (setting(PAIRS, 50), setting(SEED, 1));
    // Without the controller that finds nodes without a kubelet unreachable.
    let controllers = "--controllers=serviceaccount-controller,root-ca-certificate-publisher-controller";
    let options = Options {
        extra_controller_manager_args: vec![controllers.to_owned()],
        extra_scheduler_args: vec!["--kube-api-qps=500".to_owned(), "--kube-api-burst=1000".to_owned()],
        ..Options::with_controllers()
    };
    let control_plane = ControlPlane::start(options).await.unwrap();
    let client = control_plane.admin().unwrap();
    let namespace = control_plane.namespace("fit").await.unwrap();
    let class = json!({
        "metadata": {"name": RUNTIME_CLASS}, "handler": "none", "overhead": {"podFixed": {"cpu": "250m"}},
    });
    create(&Api::<RuntimeClass>::all(client.clone()), &class).await;
    let cluster = Cluster::new(&client, namespace.name());

    let pairs = stream::iter(first..first + count)
        .map(|seed| {
            let (cluster, namespace) = (&cluster, namespace.name());
            async move {
                let pair = Pair::generate(seed, namespace);
                (seed, cluster.write(&pair).await, pair)
            }
        })
        .buffer_unordered(PARALLEL)
        .collect::<Vec<_>>()
        .await;
    scheduler_has_seen_everything(&cluster, namespace.name()).await;

    let asked: Vec<(u64, Pair, Verdict)> = stream::iter(pairs)
        .map(|(seed, snapshot, pair)| {
            let cluster = &cluster;
            async move {
                let mut pod = pair.pod.clone();
                pod["metadata"]["labels"] = json!({"asked": "yes", PAIR: seed.to_string()});
                let pod = create(&cluster.pods, &pod).await;
                let verdict = snapshot.fit(&Query { pods: &[Arc::new(pod)], ..Query::default() }).remove(0);
                (seed, pair, verdict)
            }
        })
        .buffer_unordered(PARALLEL)
        .collect()
        .await;

    let decided = cluster.decided(asked.len()).await;
    let mut wrong = Vec::new();
    let mut bound = 0;
    for (seed, pair, verdict) in &asked {
        let name = format!("asked-{seed}");
        let pod = decided.iter().find(|pod| pod.metadata.name.as_ref() == Some(&name)).unwrap();
        let is_bound = is_bound(pod) == Some(true);
        bound += usize::from(is_bound);
        if matches!(verdict, Verdict::Unknown { .. }) || verdict.fits() != is_bound {
            wrong.push(format!(
                "seed {seed}: fit says {verdict}; the scheduler bound it: {is_bound} ({})\n{pair:#?}",
                message(pod)
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), asked.len(), wrong.join("\n"));
    let share = bound * 100 / asked.len();
    println!("{} pods, {share}% of them bound: all as fit says", asked.len());
    assert!((10..=90).contains(&share), "{share}% bound: the pairs are too easy or too hard");
}

/// Waits until a pod with a claim is bound: its node, its volume and itself are newer than everything else.
async fn scheduler_has_seen_everything(cluster: &Cluster, namespace: &str) {
    let node = json!({
        "metadata": {"name": "fit-last", "labels": {PAIR: "last"}},
        "status": {
            "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "1"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    let volume = json!({
        "metadata": {"name": "volume-last"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": "claim-last"}, "hostPath": {"path": "/data"},
        },
    });
    let claim = json!({
        "metadata": {
            "name": "claim-last", "namespace": namespace,
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "volume-last",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let pod = json!({
        "metadata": {"name": "last", "namespace": namespace, "labels": {"asked": "first"}},
        "spec": {
            "nodeSelector": {PAIR: "last"}, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "claim-last"}}],
        },
    });
    let last = Pair { nodes: vec![node], bound: Vec::new(), claim: Some((claim, volume)), pod };
    cluster.write(&last).await;
    create(&cluster.pods, &last.pod).await;
    eventually("the last pod is bound", TIMEOUT, || async {
        let pod = cluster.pods.get("last").await.map_err(|error| error.to_string())?;
        if is_bound(&pod) == Some(true) { Ok(()) } else { Err(message(&pod)) }
    })
    .await;
}
