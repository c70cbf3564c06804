//! Options of a control plane.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// An audit policy that records the metadata of every request once, with its response.
pub const AUDIT_METADATA: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// How to start a control plane. The default is an API server on a free loopback port with its data in a temporary folder.
#[derive(Debug, Clone)]
pub struct Options {
    /// Start the controller-manager and, unless `scheduler` is false, the scheduler.
    pub controllers: bool,
    /// Start the scheduler together with the controller-manager.
    pub scheduler: bool,
    /// The folder for data, keys and logs; `None` is a temporary folder that is removed at the end. With a folder that was used before, the
    /// control plane continues with the same objects and certificate authorities.
    pub data_dir: Option<PathBuf>,
    /// The folder of the programs; `None` searches `VK_CONTROL_PLANE`, `KUBEBUILDER_ASSETS` and the user's cache, in this order.
    pub programs: Option<PathBuf>,
    /// The port of the API server; `None` chooses a free one.
    pub port: Option<u16>,
    /// The address that the API server listens on.
    pub bind_address: IpAddr,
    /// The address that the API server advertises.
    pub advertise_address: IpAddr,
    /// Additional names and addresses in the API server's certificate.
    pub extra_names: Vec<String>,
    /// The audit policy as YAML (see [`AUDIT_METADATA`]); `None` writes no audit log.
    pub audit_policy: Option<String>,
    /// Appended to the command line of kube-apiserver; the last occurrence of a flag wins.
    pub extra_api_server_args: Vec<String>,
    /// Appended to the command line of kube-controller-manager.
    pub extra_controller_manager_args: Vec<String>,
    /// The configuration of kube-scheduler (a KubeSchedulerConfiguration) as YAML; `None` is its default. The kubeconfig is filled in, and leader
    /// election is off, as flags beat the file there. Deprecated flags such as `--kube-api-qps` have no effect beside a configuration.
    /// [`restart_scheduler`](crate::ControlPlane::restart_scheduler) replaces it.
    pub scheduler_config: Option<String>,
    /// Appended to the command line of kube-scheduler.
    pub extra_scheduler_args: Vec<String>,
    /// How long each component may take to become ready.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controllers: false,
            scheduler: true,
            data_dir: None,
            programs: None,
            port: None,
            bind_address: Ipv4Addr::LOCALHOST.into(),
            advertise_address: Ipv4Addr::LOCALHOST.into(),
            extra_names: Vec::new(),
            audit_policy: None,
            extra_api_server_args: Vec::new(),
            extra_controller_manager_args: Vec::new(),
            scheduler_config: None,
            extra_scheduler_args: Vec::new(),
            // Components are ready within seconds, but test machines can be busy.
            deadline: Duration::from_secs(90),
        }
    }
}

impl Options {
    /// The default with controller-manager and scheduler.
    pub fn with_controllers() -> Self {
        Self { controllers: true, ..Self::default() }
    }

    /// The default with a controller-manager that only approves and signs certificates and prepares namespaces.
    pub fn with_signing() -> Self {
        let controllers = [
            "certificatesigningrequest-approving-controller",
            "certificatesigningrequest-signing-controller",
            "root-ca-certificate-publisher-controller",
            "serviceaccount-controller",
        ];
        Self {
            controllers: true,
            scheduler: false,
            extra_controller_manager_args: vec![format!("--controllers={}", controllers.join(","))],
            ..Self::default()
        }
    }
}
