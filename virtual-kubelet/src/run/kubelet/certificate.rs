//! The serving certificate of a node without configured certificate files: self-signed at first, then signed by the cluster
//! once its certificate signing request is approved.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tracing::{Instrument as _, error, info, info_span};
use vk_kube::csr::{CertificateSpec, CertificateStore, RenewalStatus, Renewer};
use vk_server::tls::{self, ServingCertificate, self_signed};
use vk_supervisor::Clock;

use super::{Inner, ServedNode, spawn_until_stop};

/// Starts with a self-signed certificate and requests one from the cluster.
pub(super) fn of_node(served: &ServedNode<'_>, shared: &Inner) -> Result<ServingCertificate, tls::Error> {
    let clock = Clock::system();
    let (name, address) = (served.name.to_owned(), served.context.internal_ip);
    let own = self_signed::certificate(&name, &[address], clock.now())?;
    let serving = ServingCertificate::new(Arc::clone(&own));
    if !shared.config.tls.request {
        return Ok(serving);
    }
    let store =
        CertificateStore::new(shared.config.state_dir.join("pki").join(format!("{name}.serving.pem")));
    let (client, hostname, external) =
        (shared.client.clone(), served.hostname.clone(), served.node.external_ip);
    let (slot, seen) = (serving.clone(), served.observed_node.clone());
    let span = info_span!(parent: None, "node", node = %name);
    let task = format!("serving certificate of {name}");
    let work = async move {
        // What the Node will show, so that its first observation does not change the request.
        let addresses = [address].into_iter().chain(external);
        let (wanted, requested) = watch::channel(CertificateSpec::serving(&name, hostname.await, addresses));
        let renewer = Renewer::new(client, requested, store, clock);
        let status = renewer.status();
        tokio::join!(renewer.run(), follow(status, slot, own), follow_addresses(seen, wanted));
    };
    spawn_until_stop(&served.supervisor, &task, work.instrument(span));
    Ok(serving)
}

/// Serves the cluster's certificate while it is valid, and the self-signed one otherwise.
async fn follow(
    mut status: watch::Receiver<RenewalStatus>,
    serving: ServingCertificate,
    own: Arc<rustls::sign::CertifiedKey>,
) {
    let mut shown = None;
    loop {
        let current = status.borrow_and_update().current.clone();
        let pem = current.as_ref().map(|pair| pair.pem().to_owned());
        if pem != shown {
            if let Some(pair) = &current {
                info!(until = %pair.not_after(), "serving the kubelet API with a certificate of the cluster");
                serving.replace(pair.certified_key());
            } else {
                error!("the certificate of the kubelet API has expired; serving a self-signed one");
                serving.replace(Arc::clone(&own));
            }
            shown = pem;
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Updates the certificate request when the Node's addresses change.
async fn follow_addresses(
    mut seen: watch::Receiver<Option<Arc<Node>>>,
    wanted: watch::Sender<CertificateSpec>,
) {
    while seen.changed().await.is_ok() {
        let Some(node) = seen.borrow_and_update().clone() else { continue };
        let (names, ips) = reachable_at(&node);
        if ips.is_empty() && names.is_empty() {
            continue;
        }
        wanted.send_if_modified(|wanted| {
            let differs = wanted.names != names || wanted.addresses != ips;
            if differs {
                wanted.names.clone_from(&names);
                wanted.addresses.clone_from(&ips);
            }
            differs
        });
    }
}

/// Host names and IP addresses of a Node.
fn reachable_at(node: &Node) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let (mut names, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for address in all {
        match (address.type_.as_str(), address.address.parse::<IpAddr>()) {
            ("InternalIP" | "ExternalIP", Ok(ip)) => {
                ips.insert(ip);
            }
            ("Hostname" | "InternalDNS" | "ExternalDNS", Err(_)) if !address.address.is_empty() => {
                names.insert(address.address.clone());
            }
            _ => {}
        }
    }
    (names, ips)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(addresses: &[(&str, &str)]) -> Option<Arc<Node>> {
        let addresses: Vec<_> =
            addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
        serde_json::from_value(json!({"metadata": {}, "status": {"addresses": addresses}})).ok().map(Arc::new)
    }

    #[test]
    fn a_node_is_reached_by_its_addresses_and_names() {
        let all = [
            ("InternalIP", "10.0.0.1"),
            ("InternalIP", "fd00::1"),
            ("ExternalIP", "192.0.2.1"),
            ("Hostname", "vk"),
            ("ExternalDNS", "vk.example.com"),
            ("InternalIP", "nonsense"),
            ("Hostname", ""),
        ];
        let (names, ips) = reachable_at(&node(&all).unwrap());
        assert_eq!(Vec::from_iter(names), ["vk", "vk.example.com"]);
        assert_eq!(ips.len(), 3);
    }

    #[tokio::test]
    async fn a_new_certificate_is_requested_only_when_the_addresses_change() {
        let (sender, observed) = watch::channel(None);
        let first = CertificateSpec::serving("vk", ["vk".to_owned()], ["10.0.0.1".parse().unwrap()]);
        let (wanted, mut requested) = watch::channel(first.clone());
        let mut following = std::pin::pin!(follow_addresses(observed, wanted));
        let mut see = async |addresses: &[(&str, &str)]| {
            sender.send_replace(node(addresses));
            let step = std::time::Duration::from_millis(50);
            assert!(tokio::time::timeout(step, &mut following).await.is_err(), "it goes on");
        };
        see(&[("InternalIP", "10.0.0.1"), ("Hostname", "vk")]).await;
        see(&[]).await;
        assert!(!requested.has_changed().unwrap());
        see(&[("InternalIP", "10.0.0.2"), ("Hostname", "vk")]).await;
        assert!(requested.has_changed().unwrap());
        let now = requested.borrow_and_update().clone();
        assert!(now.addresses.contains(&"10.0.0.2".parse::<IpAddr>().unwrap()) && now.names == first.names);
    }
}
