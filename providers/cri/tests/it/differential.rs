//! Runs pods on the real kubelet with its own containerd, and records or compares their statuses and the state of the runtime
//! (`make e2e-cri`).
//!
//! The corpus and the recordings are beside the tests of the pod engine (`crates/pod-engine/tests/it/kubelet`), which replay them without
//! a runtime. That the whole command does the same with pods is shown by its own tests.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt as _, future, stream};
use vk_pod_engine::{ContainerBackend as _, Snapshot, snapshot::label, volume::termination_message};
use vk_provider_cri::Cri;
use vk_supervisor::Clock;
use vk_testing::{
    corpus::{NODE, NodeEnvironment, Recording, SnapshotFn},
    host::{Containerd, HostResources, Kubelet, kubelet},
};

/// Set to record instead of comparing with the recordings.
const RECORD: &str = "VK_RECORD";
/// Selects cases by parts of their names.
const ONLY: &str = "VK_ONLY";
/// Pods that run at once.
const AT_ONCE: usize = 12;

#[tokio::test]
#[ignore = "needs root, containerd and the kubelet: make e2e-cri"]
async fn the_real_kubelet_does_what_was_recorded() {
    let scene = NodeEnvironment::start(HostResources::numbered(NodeEnvironment::RECORDER)).await;
    let options = kubelet::Options { node: NODE.to_owned(), features: Vec::new() };
    let kubelet = Kubelet::start(&scene.host, &scene.cluster, &options).await;
    let info = scene.node().await.status.unwrap().node_info.unwrap();
    println!("kubelet {} on {}", info.kubelet_version, info.container_runtime_version);
    let stage = &scene.runner(look(&scene).await, || Clock::system().now());
    let mut cases = scene.cases(&data().join("corpus"));
    if let Ok(only) = std::env::var(ONLY) {
        cases.retain(|case| only.split(',').any(|part| case.name.contains(part)));
    }
    let folder = &data().join("recorded").join(scene.runtime());

    if std::env::var_os(RECORD).is_some_and(|value| !value.is_empty()) {
        let wrong: Vec<String> = stream::iter(&cases)
            .map(|case| async move { (case, Box::pin(stage.record(case)).await) })
            .buffer_unordered(AT_ONCE)
            .filter_map(|(case, moments)| {
                let recording = moments.map(|moments| Recording {
                    kubelet: info.kubelet_version.clone(),
                    runtime: info.container_runtime_version.clone(),
                    moments,
                });
                println!("{}: {}", case.name, if recording.is_ok() { "recorded" } else { "not reached" });
                future::ready(recording.map(|recording| recording.save(folder, &case.name)).err())
            })
            .collect()
            .await;
        assert!(wrong.is_empty(), "{} cases could not be recorded:\n{}", wrong.len(), wrong.join("\n"));
    } else {
        let found: Vec<String> = stream::iter(&cases)
            .map(|case| async move {
                let recorded = Recording::load(folder, &case.name);
                let found = Box::pin(stage.compare(case, &recorded)).await;
                found.into_iter().map(|text| format!("{}: {text}", case.name)).collect::<Vec<_>>()
            })
            .buffer_unordered(AT_ONCE)
            .flat_map(stream::iter)
            .collect()
            .await;
        assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
        println!("{} cases are as recorded", cases.len());
    }
    drop(kubelet);
}

/// The directory of the corpus and the recordings.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/pod-engine/tests/it/kubelet")
}

/// Reads the objects of a pod from the runtime.
async fn look(scene: &NodeEnvironment<Containerd>) -> SnapshotFn {
    let cri = Cri::connect(scene.host.socket()).await.unwrap();
    Arc::new(move |uid| {
        let cri = cri.clone();
        Box::pin(async move { serde_json::to_value(snapshot(&cri, &uid).await).unwrap() })
    })
}

/// All objects of a pod in the runtime, whoever created them. Objects that disappear meanwhile are skipped.
async fn snapshot(cri: &Cri, uid: &str) -> Snapshot {
    let labels = BTreeMap::from([(label::POD_UID.to_owned(), uid.to_owned())]);
    let list = cri.list(&labels).await.unwrap();
    let mut snapshot = Snapshot::default();
    for entry in list.sandboxes {
        snapshot.sandboxes.extend(cri.sandbox(&entry.id).await.ok());
    }
    for entry in list.containers {
        if let Ok(mut container) = cri.container(&entry.id).await {
            termination_message::append_to(&mut container).await;
            snapshot.containers.push(container);
        }
    }
    snapshot.sort();
    snapshot
}
