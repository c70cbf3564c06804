//! Removes the network of a node of the provider `local`.

use std::{collections::BTreeSet, path::PathBuf};

use vk_provider_local::network::{Network, NetworkSettings};

/// Directory of a node's network. Its links and rules belong to the machine, not to a namespace, so they are removed on drop.
pub(crate) struct NetworkCleanup(pub(crate) PathBuf);

impl Drop for NetworkCleanup {
    fn drop(&mut self) {
        let dir = self.0.clone();
        let put_back = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let network = Network::open(NetworkSettings { dir, subnet: None, nat: true }).await.unwrap();
                network.reconcile(&BTreeSet::new()).await.unwrap();
                network.close().await.unwrap();
            });
        });
        let put_back = put_back.join();
        assert!(std::thread::panicking() || put_back.is_ok(), "the network was not put back");
    }
}
