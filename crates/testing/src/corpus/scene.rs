//! What a node is run on: a control plane, a machine with or without a runtime, a registry, files of the host.

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::Api;

use super::{Case, Look, NODE, Stage};
use crate::{
    ControlPlane,
    control_plane::Options,
    eventually,
    peer::{Bare, Containerd, Host, Image, Machine, Registry, containerd, make_folder, write},
};

/// Names another containerd than that of `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";
/// The registry of the machine that recordings are made on: image names count in what makes a container another one.
const RECORDED_REGISTRY: &str = "127.0.0.1:5210";
const SOON: Duration = Duration::from_mins(2);

/// Everything but the node's agent.
#[derive(Debug)]
pub struct Scene<H> {
    /// The control plane.
    pub cluster: ControlPlane,
    /// The machine, and the runtime where it has one.
    pub host: H,
    registry: Registry,
}

// === impl Scene ===

impl Scene<Containerd> {
    /// The machine that recordings are made on: they hold its addresses.
    pub const RECORDER: u8 = 210;

    /// Starts everything on a machine. `VK_CONTAINERD` names another containerd than the one of this machine.
    pub async fn set(machine: Machine) -> Self {
        let (cluster, registry) = surroundings(&machine).await;
        let mut options = containerd::Options::default();
        if let Some(program) = std::env::var_os(CONTAINERD).filter(|program| !program.is_empty()) {
            options.program = program.into();
        }
        Self { cluster, host: Containerd::start(machine, options).await, registry }
    }

    /// The runtime in the names of folders: what it does differs from one minor version to the next.
    pub fn runtime(&self) -> String {
        let version: Vec<&str> = self.host.version().split('.').take(2).collect();
        format!("containerd-{}", version.join("."))
    }
}

impl Scene<Bare> {
    /// Starts everything but a runtime.
    pub async fn bare(machine: Machine) -> Self {
        let (cluster, registry) = surroundings(&machine).await;
        Self { cluster, host: Bare::start(machine).await, registry }
    }
}

impl<H: Host> Scene<H> {
    /// The cases of a folder, as they are here.
    pub fn cases(&self, folder: &Path) -> Vec<Case> {
        let words = [
            ("{registry}", self.registry.address()),
            ("{docker config}", self.registry.docker_config()),
            ("{host}", self.folder().join("host").display().to_string()),
        ];
        Case::all(folder, &words)
    }

    fn folder(&self) -> &Path {
        self.host.machine().folder()
    }

    /// The stage for cases.
    pub fn stage(&self, look: Look, now: fn() -> jiff::Timestamp) -> Stage<'_> {
        Stage {
            cluster: &self.cluster,
            client: self.cluster.admin().expect("a client"),
            look,
            now,
            own: &[],
            addresses: 2,
            words: vec![
                (self.folder().display().to_string(), "/peer"),
                (self.registry.address(), RECORDED_REGISTRY),
            ],
        }
    }

    /// The node, as soon as it is ready.
    pub async fn node(&self) -> Node {
        let nodes: Api<Node> = Api::all(self.cluster.admin().expect("a client"));
        eventually("the node is Ready", SOON, || async {
            let node = nodes.get(NODE).await.map_err(|error| error.to_string())?;
            let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
            if ready { Ok(node) } else { Err(format!("{:?}", node.status)) }
        })
        .await
    }
}

/// A control plane, and a registry and files as the cases want them.
async fn surroundings(machine: &Machine) -> (ControlPlane, Registry) {
    let cluster = Box::pin(ControlPlane::start(Options::default())).await.expect("a control plane");
    let mut images: Vec<Image> = (1..=3)
        .map(|tag| {
            // Each with contents of its own: who may use an image is asked by its contents, whatever it is called.
            let name = format!("vk.test/private:{tag}");
            Image::standard().remove(0).named(&name).file("/private", &name)
        })
        .collect();
    images.push(Image::new("vk.test/foreign:1").architecture("s390x"));
    let registry = Registry::start(machine, &images).await;
    let host = machine.folder().join("host");
    make_folder(&host.join("folder"));
    write(&host.join("folder/inside"), "in the folder\n");
    write(&host.join("file"), "a file\n");
    (cluster, registry)
}
