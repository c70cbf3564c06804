//! The checks of `virtual-kubelet doctor --placement`: whether what placement needs is there, and goes together.

mod account;
mod process;
mod setup;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use vk_kube::{Client, Error, Kind, Objects, Selector, ServerVersion};
use vk_provider::{
    Finding,
    placement::{FitQuery, PLACEMENT_ANNOTATION, declares_fit},
};

use self::{process::ProcessObjects, setup::SetupObjects};
use crate::ask::FitClient;

/// Examines a cluster.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct Doctor<'a> {
    /// The cluster, with permissions to read what is checked.
    pub client: &'a Client,
    /// Asks nodes.
    pub fit_client: &'a FitClient,
    /// The namespace of placement.
    pub namespace: &'a str,
    /// The time on the wall clock.
    pub now: Timestamp,
}

// === impl Doctor ===

impl Doctor<'_> {
    /// All findings, at least one of each subject.
    pub async fn examine(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let version = match ServerVersion::fetch(self.client).await {
            Ok(version) => version,
            Err(error) => {
                return vec![Finding::error(
                    "API server",
                    error.to_string(),
                    "check --kubeconfig and the network",
                )];
            }
        };
        match SetupObjects::read(self).await {
            Ok(setup) => findings.extend(setup.findings(version, self.namespace)),
            Err(error) => findings.push(unreadable("policy", &error)),
        }
        match ProcessObjects::read(self).await {
            Ok(process) => findings.extend(process.findings(self.now, self.namespace)),
            Err(error) => findings.push(unreadable("process", &error)),
        }
        findings.extend(account::findings(self).await);
        findings.extend(self.node_findings().await);
        findings
    }

    /// Whether the nodes that declare it can be asked.
    async fn node_findings(&self) -> Vec<Finding> {
        let nodes = match Objects::<Node>::all(self.client.clone()).list(&Selector::default()).await {
            Ok(nodes) => nodes.objects,
            Err(error) => return vec![unreadable("nodes", &error)],
        };
        let (mut findings, mut answering) = (Vec::new(), 0);
        for node in nodes.iter().filter(|node| declares_fit(node)) {
            match self.fit_client.ask(node, &FitQuery::default()).await {
                Ok(_) => answering += 1,
                Err(error) => {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    let remedy = "check that the node runs and can be reached from here, and that you may create nodes/placement";
                    findings.push(Finding::error(format!("node {name}"), error.to_string(), remedy));
                }
            }
        }
        if answering > 0 {
            findings.push(Finding::ok("nodes", format!("{answering} can be asked whether pods fit")));
        } else if findings.is_empty() {
            let found = format!(
                "none has the annotation {PLACEMENT_ANNOTATION}: no node can be asked whether pods fit"
            );
            findings.push(Finding::warning(
                "nodes",
                found,
                "run virtual nodes with a provider that tells, such as cluster",
            ));
        }
        findings
    }

    /// An object, or `None` if it does not exist.
    async fn find(&self, resource: &str, path: &str) -> Result<Option<Value>, Error> {
        match self.client.read::<Value>(resource, path).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if matches!(error.kind, Kind::NotFound | Kind::NotServed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An object of `admissionregistration.k8s.io`.
    async fn find_registration(&self, resource: &str, name: &str) -> Result<Option<Value>, Error> {
        self.find(resource, &format!("/apis/admissionregistration.k8s.io/v1/{resource}/{name}")).await
    }
}

fn unreadable(what: &str, error: &Error) -> Finding {
    Finding::error(what, format!("cannot be checked: {error}"), "use credentials that may read it")
}

/// A string in an object.
fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str()
}

#[cfg(test)]
mod tests;
