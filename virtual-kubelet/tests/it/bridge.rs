//! The network of a node of the provider `local`, to be put back.

use std::{collections::BTreeSet, path::PathBuf};

use vk_provider_local::network::{Network, NetworkSettings};

/// The directory of a node's network. Links and rules are the machine's: no namespace takes them along, so that they go when this does.
pub(crate) struct Bridge(pub(crate) PathBuf);

impl Drop for Bridge {
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
