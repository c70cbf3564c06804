//! Identities of a control plane: clients, kubeconfigs and certificates.

use std::path::Path;

use super::certs::{self, Certificate};
use super::error::Result;
use super::{ControlPlane, kubeconfig};

impl ControlPlane {
    /// The authority that signed the API server's certificate, and all clients'.
    pub fn ca_pem(&self) -> &str {
        self.pki.cluster.cert_pem()
    }

    /// A client that may do everything.
    ///
    /// Every client here is a new one and belongs to the runtime it was made on.
    pub fn admin(&self) -> Result<kube::Client> {
        kubeconfig::client(&self.url, self.ca_pem(), &self.admin)
    }

    /// A kubeconfig file of the administrator, readable by its owner only.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin_kubeconfig
    }

    /// A client with a certificate for this user and at most two groups.
    pub fn client_for(&self, user: &str, groups: &[&str]) -> Result<kube::Client> {
        kubeconfig::client(&self.url, self.ca_pem(), &self.client_certificate(user, groups)?)
    }

    /// A client with a kubelet's identity: user `system:node:NAME`, group `system:nodes`.
    pub fn node_client(&self, node: &str) -> Result<kube::Client> {
        self.client_for(&format!("system:node:{node}"), &["system:nodes"])
    }

    /// A kubeconfig for this user and at most two groups, with everything embedded.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<String> {
        let identity = self.client_certificate(user, groups)?;
        Ok(kubeconfig::kubeconfig(&self.url, self.ca_pem(), &identity))
    }

    /// Writes such a kubeconfig to a file that only its owner may read.
    pub fn write_kubeconfig(&self, path: &Path, user: &str, groups: &[&str]) -> Result<()> {
        certs::write(path, &self.kubeconfig_for(user, groups)?)
    }

    /// A client certificate of the cluster's authority.
    pub fn client_certificate(&self, user: &str, groups: &[&str]) -> Result<Certificate> {
        self.pki.cluster.client(user, groups)
    }

    /// A client certificate of the cluster's authority that nobody may accept any more.
    pub fn expired_client_certificate(&self, user: &str) -> Result<Certificate> {
        self.pki.cluster.expired_client(user)
    }

    /// A serving certificate for these host names and IP addresses, of the authority by which the API server
    /// verifies kubelets.
    pub fn serving_certificate(&self, common_name: &str, names: &[&str]) -> Result<Certificate> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        self.pki.cluster.serving(common_name, &names)
    }
}
