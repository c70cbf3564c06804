//! Everything that a node needs to run the corpus: a control plane, a host with or without a container runtime, a registry, host files.

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::Api;

use super::{Case, CaseRunner, NODE, SnapshotFn};
use crate::{
    ControlPlane,
    control_plane::Options,
    eventually,
    host::{BareHost, Containerd, Host, HostResources, Image, Registry, containerd, make_folder, write},
};

/// The environment variable with the path of a containerd other than the one in `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";
/// The registry address in recordings: image names are part of a container's identity.
const RECORDED_REGISTRY: &str = "127.0.0.1:5210";
const SOON: Duration = Duration::from_mins(2);

/// Everything but the agent of the node.
#[derive(Debug)]
pub struct NodeEnvironment<H> {
    /// The control plane.
    pub cluster: ControlPlane,
    /// The host, with its container runtime if it has one.
    pub host: H,
    registry: Registry,
}

// === impl NodeEnvironment ===

impl NodeEnvironment<Containerd> {
    /// The number of the host resources that recordings are made with: recordings contain their addresses.
    pub const RECORDER: u8 = 210;

    /// Starts everything. `VK_CONTAINERD` names another containerd than the host's.
    pub async fn start(resources: HostResources) -> Self {
        let (cluster, registry) = start_services(&resources).await;
        let mut options = containerd::Options::default();
        if let Some(program) = std::env::var_os(CONTAINERD).filter(|program| !program.is_empty()) {
            options.program = program.into();
        }
        Self { cluster, host: Containerd::start(resources, options).await, registry }
    }

    /// The folder name of recordings for this runtime: its behaviour differs between minor versions.
    pub fn runtime(&self) -> String {
        let version: Vec<&str> = self.host.version().split('.').take(2).collect();
        format!("containerd-{}", version.join("."))
    }
}

impl NodeEnvironment<BareHost> {
    /// Starts everything without a container runtime.
    pub async fn start_bare(resources: HostResources) -> Self {
        let (cluster, registry) = start_services(&resources).await;
        Self { cluster, host: BareHost::start(resources).await, registry }
    }
}

impl<H: Host> NodeEnvironment<H> {
    /// Reads the cases of a folder and replaces their placeholders.
    pub fn cases(&self, folder: &Path) -> Vec<Case> {
        let placeholders = [
            ("{registry}", self.registry.address()),
            ("{docker config}", self.registry.docker_config()),
            ("{host}", self.folder().join("host").display().to_string()),
        ];
        Case::all(folder, &placeholders)
    }

    fn folder(&self) -> &Path {
        self.host.resources().folder()
    }

    /// A runner for cases.
    pub fn runner(&self, snapshot: SnapshotFn, now: fn() -> jiff::Timestamp) -> CaseRunner<'_> {
        CaseRunner {
            cluster: &self.cluster,
            client: self.cluster.admin().expect("a client"),
            snapshot,
            now,
            own_events: &[],
            addresses: 2,
            replacements: vec![
                (self.folder().display().to_string(), "/peer"),
                (self.registry.address(), RECORDED_REGISTRY),
            ],
        }
    }

    /// Waits until the node is Ready.
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

/// Starts a control plane and a registry, and creates the host files of the cases.
async fn start_services(resources: &HostResources) -> (ControlPlane, Registry) {
    // The kubelet publishes a host name that does not resolve.
    let addresses = "--kubelet-preferred-address-types=InternalIP";
    let options = Options { extra_api_server_args: vec![addresses.to_owned()], ..Options::default() };
    let cluster = Box::pin(ControlPlane::start(options)).await.expect("a control plane");
    let mut images: Vec<Image> = (1..=3)
        .map(|tag| {
            // Each with different contents: access to an image is checked by its digest, not its name.
            let name = format!("vk.test/private:{tag}");
            Image::standard().remove(0).named(&name).file("/private", &name)
        })
        .collect();
    images.push(Image::new("vk.test/foreign:1").architecture("s390x"));
    let registry = Registry::start(resources, &images).await;
    let host = resources.folder().join("host");
    make_folder(&host.join("folder"));
    write(&host.join("folder/inside"), "in the folder\n");
    write(&host.join("file"), "a file\n");
    (cluster, registry)
}
