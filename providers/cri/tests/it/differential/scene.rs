//! What a node of either kind is run on: a control plane, a containerd, a registry, files of the host.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::Value;
use vk_pod_engine::{
    ContainerBackend as _, Snapshot,
    snapshot::label,
    volume::message,
};
use vk_provider_cri::Cri;
use vk_supervisor::Clock;
use vk_testing::{
    ControlPlane,
    control_plane::Options,
    corpus::{Case, Look, NODE, Stage},
    eventually,
    peer::{Containerd, Image, Machine, Registry, containerd},
};

/// Names another containerd than that of `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";
/// Chooses among the cases: a part of their names.
const ONLY: &str = "VK_ONLY";
/// The registry of the machine that recordings are made on: image names count in what makes a container another one.
const RECORDED_REGISTRY: &str = "127.0.0.1:5210";
const SOON: Duration = Duration::from_mins(2);

/// Everything but the agent.
pub(super) struct Scene {
    pub(super) cluster: ControlPlane,
    pub(super) containerd: Containerd,
    registry: Registry,
}

// === impl Scene ===

impl Scene {
    pub(super) async fn set(machine: Machine) -> Self {
        let cluster = Box::pin(ControlPlane::start(Options::default())).await.unwrap();
        let folder = machine.folder().to_owned();
        let mut images = Vec::new();
        for tag in 1..=3 {
            // Each with contents of its own: who may use an image is asked by its contents, whatever it is called.
            let name = format!("vk.test/private:{tag}");
            images.push(Image::standard().remove(0).named(&name).file("/private", &name));
        }
        images.push(Image::new("vk.test/foreign:1").architecture("s390x"));
        let registry = Registry::start(&machine, &images).await;
        let host = folder.join("host");
        std::fs::create_dir_all(host.join("folder")).unwrap();
        std::fs::write(host.join("folder/inside"), "in the folder\n").unwrap();
        std::fs::write(host.join("file"), "a file\n").unwrap();
        let mut options = containerd::Options::default();
        if let Some(program) = std::env::var_os(CONTAINERD).filter(|program| !program.is_empty()) {
            options.program = program.into();
        }
        let containerd = Containerd::start(machine, options).await;
        Self { cluster, containerd, registry }
    }

    /// The runtime in the names of folders: what it does differs from one minor version to the next.
    pub(super) fn runtime(&self) -> String {
        let version: Vec<&str> = self.containerd.version().split('.').take(2).collect();
        format!("containerd-{}", version.join("."))
    }

    /// The cases, as they are here.
    pub(super) fn cases(&self) -> Vec<Case> {
        let words = [
            ("{registry}", self.registry.address()),
            ("{docker config}", self.registry.docker_config()),
            ("{host}", self.folder().join("host").display().to_string()),
        ];
        let mut cases = Case::all(&data().join("corpus"), &words);
        if let Ok(only) = std::env::var(ONLY) {
            cases.retain(|case| only.split(',').any(|part| case.name.contains(part)));
        }
        cases
    }

    fn folder(&self) -> &Path {
        self.containerd.machine().folder()
    }

    /// The stage for cases.
    pub(super) fn stage(&self, look: Look) -> Stage<'_> {
        Stage {
            cluster: &self.cluster,
            client: self.cluster.admin().unwrap(),
            look,
            now: || Clock::system().now(),
            words: vec![
                (self.folder().display().to_string(), "/peer"),
                (self.registry.address(), RECORDED_REGISTRY),
            ],
        }
    }

    /// Who asks the runtime what it has of a pod.
    pub(super) async fn look(&self) -> Look {
        let cri = Cri::connect(self.containerd.socket()).await.unwrap();
        Arc::new(move |uid| -> BoxFuture<'static, Value> {
            let cri = cri.clone();
            Box::pin(async move { serde_json::to_value(snapshot(&cri, &uid).await).unwrap() })
        })
    }

    /// The node, as soon as it is ready.
    pub(super) async fn node(&self) -> Node {
        let nodes: Api<Node> = Api::all(self.cluster.admin().unwrap());
        eventually("the node is Ready", SOON, || async {
            let node = nodes.get(NODE).await.map_err(|error| error.to_string())?;
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            if ready { Ok(node) } else { Err(format!("{:?}", node.status)) }
        })
        .await
    }
}

/// Where the corpus and the recordings are.
pub(super) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/pod-engine/tests/it/kubelet")
}

/// Everything that the runtime has of a pod, whosever it is. What goes while we look is left out.
async fn snapshot(cri: &Cri, uid: &str) -> Snapshot {
    let labels = BTreeMap::from([(label::POD_UID.to_owned(), uid.to_owned())]);
    let list = cri.list(&labels).await.unwrap();
    let mut snapshot = Snapshot::default();
    for entry in list.sandboxes {
        snapshot.sandboxes.extend(cri.sandbox(&entry.id).await.ok());
    }
    for entry in list.containers {
        if let Ok(mut container) = cri.container(&entry.id).await {
            message::complete(&mut container).await;
            snapshot.containers.push(container);
        }
    }
    snapshot.sort();
    snapshot
}
