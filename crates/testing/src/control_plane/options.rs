//! What a control plane is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// An audit policy that records every request's metadata once, when it is answered.
pub const AUDIT_METADATA: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// How to start a control plane. The default is an API server on a free loopback port, with its data in a
/// temporary folder.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether to start the controller-manager too, and with it the scheduler.
    pub controllers: bool,
    /// Whether the scheduler comes with the controller-manager.
    pub scheduler: bool,
    /// Where data, keys and logs are kept; `None` is a temporary folder that is removed at the end. A folder
    /// that was used before continues with the same objects and authorities.
    pub data_dir: Option<PathBuf>,
    /// The folder of the programs; `None` looks at `VK_CONTROL_PLANE`, `KUBEBUILDER_ASSETS` and the user's
    /// cache, in this order.
    pub programs: Option<PathBuf>,
    /// The API server's port; `None` is a free one.
    pub port: Option<u16>,
    /// The address the API server listens on.
    pub bind_address: IpAddr,
    /// The address the API server names as its own.
    pub advertise_address: IpAddr,
    /// Further names and addresses for the API server's certificate.
    pub extra_names: Vec<String>,
    /// The audit policy, as YAML (see [`AUDIT_METADATA`]); `None` writes no audit log.
    pub audit_policy: Option<String>,
    /// Added to kube-apiserver's command line, after ours: of a flag given twice the last one counts.
    pub extra_api_server_args: Vec<String>,
    /// Added to kube-controller-manager's command line.
    pub extra_controller_manager_args: Vec<String>,
    /// Added to kube-scheduler's command line.
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
            extra_scheduler_args: Vec::new(),
            // Ready within seconds, but test machines can be busy with many things at once.
            deadline: Duration::from_secs(90),
        }
    }
}

impl Options {
    /// The default with controller-manager and scheduler.
    pub fn with_controllers() -> Self {
        Self { controllers: true, ..Self::default() }
    }

    /// The default with a controller-manager that approves and signs certificates, furnishes namespaces, and does nothing
    /// else.
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
