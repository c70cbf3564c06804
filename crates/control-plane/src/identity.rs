//! Clients, kubeconfigs and certificates for users of a control plane.

use std::path::Path;

use crate::certs::{self, Certificate};
use crate::error::Result;
use crate::{ControlPlane, kubeconfig};

impl ControlPlane {
    /// The CA certificate that signed the certificates of the API server and of all clients.
    pub fn ca_pem(&self) -> &str {
        self.pki.cluster.cert_pem()
    }

    /// A client of a cluster administrator.
    ///
    /// Every call creates a new client, which belongs to the current runtime.
    pub fn admin(&self) -> Result<kube::Client> {
        kubeconfig::client(&self.url, self.ca_pem(), &self.admin)
    }

    /// The administrator's kubeconfig file, which only its owner can read.
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

    /// A kubeconfig for this user and at most two groups, with embedded certificates.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<String> {
        let identity = self.client_certificate(user, groups)?;
        Ok(kubeconfig::kubeconfig(&self.url, self.ca_pem(), &identity))
    }

    /// Writes a kubeconfig for this user to a file that only its owner can read.
    pub fn write_kubeconfig(&self, path: &Path, user: &str, groups: &[&str]) -> Result<()> {
        certs::write(path, &self.kubeconfig_for(user, groups)?)
    }

    /// A client certificate signed by the cluster's CA.
    pub fn client_certificate(&self, user: &str, groups: &[&str]) -> Result<Certificate> {
        self.pki.cluster.client(user, groups)
    }

    /// An expired client certificate signed by the cluster's CA.
    pub fn expired_client_certificate(&self, user: &str) -> Result<Certificate> {
        self.pki.cluster.expired_client(user)
    }

    /// A serving certificate for these host names and IP addresses, signed by the CA with which the API server verifies kubelets.
    pub fn serving_certificate(&self, common_name: &str, names: &[&str]) -> Result<Certificate> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        self.pki.cluster.serving(common_name, &names)
    }
}
