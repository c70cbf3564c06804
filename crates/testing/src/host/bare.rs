//! A host without a container runtime.

use super::{Host, HostResources, Namespaces};

/// Host resources and namespaces without a container runtime. Dropping it ends everything in the namespaces and frees the resources.
#[derive(Debug)]
pub struct BareHost {
    namespaces: Namespaces,
    resources: HostResources,
}

// === impl BareHost ===

impl BareHost {
    /// Creates the namespaces.
    pub async fn start(resources: HostResources) -> Self {
        Self { namespaces: Namespaces::new(resources.folder()).await, resources }
    }

    /// Ends all processes and removes all mounts, as a reboot does: only files on disk are left.
    pub async fn reboot(&mut self) {
        let new = Namespaces::new(self.resources.folder()).await;
        drop(std::mem::replace(&mut self.namespaces, new));
    }
}

impl Host for BareHost {
    fn resources(&self) -> &HostResources {
        &self.resources
    }

    fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }
}
