//! Where a node is asked.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Node;
use vk_provider::placement::{SERVING_KEY_ANNOTATION, serving_key};

use super::AskError;

/// The address of a node's kubelet API, and the fingerprint of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) key: String,
}

// === impl Endpoint ===

impl Endpoint {
    /// Reads the endpoint from the Node object.
    pub(super) fn of(node: &Node) -> Result<Self, AskError> {
        let incomplete = |missing: &str| AskError::Incomplete(missing.to_owned());
        let status = node.status.as_ref();
        let addresses = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        let ip = addresses
            .iter()
            .filter(|address| address.type_ == "InternalIP")
            .find_map(|address| address.address.parse::<IpAddr>().ok())
            .ok_or_else(|| incomplete("no address of the type InternalIP"))?;
        let endpoints = status.and_then(|status| status.daemon_endpoints.as_ref());
        let port = endpoints
            .and_then(|endpoints| endpoints.kubelet_endpoint.as_ref())
            .and_then(|endpoint| u16::try_from(endpoint.port).ok())
            .filter(|port| *port > 0)
            .ok_or_else(|| incomplete("no port of the kubelet API"))?;
        let key = serving_key(node).filter(|key| is_fingerprint(key)).ok_or_else(|| {
            incomplete(&format!("no fingerprint `sha256:…` in the annotation {SERVING_KEY_ANNOTATION}"))
        })?;
        Ok(Self { address: SocketAddr::new(ip, port), key: key.to_owned() })
    }
}

/// Whether this can be the fingerprint of a key.
fn is_fingerprint(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(change: impl Fn(&mut Value)) -> Node {
        let mut node = json!({
            "metadata": {"annotations": {SERVING_KEY_ANNOTATION: format!("sha256:{}", "0a".repeat(32))}},
            "status": {
                "addresses": [
                    {"type": "Hostname", "address": "vk"},
                    {"type": "InternalIP", "address": "10.0.0.1"},
                    {"type": "InternalIP", "address": "10.0.0.2"},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10_250}},
            },
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_node_is_asked_at_its_internal_address_and_kubelet_port() {
        let endpoint = Endpoint::of(&node(|_| {})).unwrap();
        assert_eq!(endpoint.address.to_string(), "10.0.0.1:10250");
        assert_eq!(endpoint.key, format!("sha256:{}", "0a".repeat(32)));
        let ipv6 =
            node(|node| node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "fd00::1"}]));
        assert_eq!(Endpoint::of(&ipv6).unwrap().address.to_string(), "[fd00::1]:10250");
    }

    #[test]
    fn what_a_node_lacks_is_named() {
        let lacks = |change: &dyn Fn(&mut Value)| Endpoint::of(&node(change)).unwrap_err().to_string();
        assert!(lacks(&|node| node["status"]["addresses"] = json!([])).contains("InternalIP"));
        assert!(lacks(&|node| node["status"]["daemonEndpoints"] = json!({})).contains("port"));
        for key in [
            "",
            "sha256:",
            "sha256:12",
            &format!("SHA256:{}", "0a".repeat(32)),
            &format!("sha256:{}", "zz".repeat(32)),
        ] {
            let why = lacks(&|node| node["metadata"]["annotations"][SERVING_KEY_ANNOTATION] = json!(key));
            assert!(why.contains(SERVING_KEY_ANNOTATION), "{key}: {why}");
        }
        assert!(lacks(&|node| node["metadata"] = json!({})).contains(SERVING_KEY_ANNOTATION));
    }
}
