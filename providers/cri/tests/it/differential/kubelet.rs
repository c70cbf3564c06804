//! The real kubelet: `make e2e-cri`.

use futures::{StreamExt as _, future, stream};
use vk_testing::{
    corpus::{NODE, Recording},
    peer::{Kubelet, Machine, kubelet},
};

use super::scene::{Scene, data};

/// Set to record, in place of comparing with what was recorded.
const RECORD: &str = "VK_RECORD";
/// Recordings hold the addresses of the machine, so it is always the same one.
const MACHINE: u8 = 210;
/// Pods that run at once.
const AT_ONCE: usize = 16;

#[tokio::test]
#[ignore = "needs root, containerd and the kubelet: make e2e-cri"]
async fn the_real_kubelet_does_what_was_recorded() {
    let scene = Scene::set(Machine::numbered(MACHINE)).await;
    let options = kubelet::Options { node: NODE.to_owned(), features: Vec::new() };
    let kubelet = Kubelet::start(&scene.containerd, &scene.cluster, &options).await;
    let info = scene.node().await.status.unwrap().node_info.unwrap();
    println!("kubelet {} on {}", info.kubelet_version, info.container_runtime_version);
    let stage = scene.stage(scene.look().await);
    let (stage, cases) = (&stage, scene.cases());
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
    }
    drop(kubelet);
}
