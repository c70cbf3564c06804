//! The CAs in the configuration of the webhook.

use k8s_openapi::{ByteString, api::admissionregistration::v1::MutatingWebhookConfiguration};
use serde_json::{Value, json};

/// The names of our webhooks end like this. Somebody may have added others to the configuration.
const OURS: &str = ".placement.virtual-kubelet.io";

/// A strategic merge patch that makes our webhooks trust these CAs. `None` if they do. It is for this version of the configuration: a merge
/// would add a webhook that was removed meanwhile.
pub(super) fn patch(configuration: &MutatingWebhookConfiguration, bundle: &str) -> Option<Value> {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks = configuration.webhooks.iter().flatten();
    let outdated = webhooks.filter(|webhook| {
        webhook.name.ends_with(OURS) && webhook.client_config.ca_bundle.as_ref() != Some(&bundle)
    });
    let changes: Vec<Value> =
        outdated.map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}})).collect();
    let metadata = &configuration.metadata;
    (!changes.is_empty()).then(|| {
        json!({
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "webhooks": changes,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        convert::Settings,
        policy::{FailurePolicy, WebhookAddress, webhook_configuration},
    };

    fn configuration(ca: Option<&str>) -> MutatingWebhookConfiguration {
        let address = WebhookAddress::Url("https://127.0.0.1:8444".to_owned());
        let text =
            webhook_configuration(&address, ca, &Settings::default(), "kube-system", FailurePolicy::Fail);
        let mut value: Value = serde_saphyr::from_str(text.split("\n---\n").next().unwrap()).unwrap();
        value["metadata"]["uid"] = json!("1");
        value["metadata"]["resourceVersion"] = json!("7");
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_webhook_of_the_printed_configuration_gets_the_bundle_once() {
        for before in [None, Some("old")] {
            let patch = patch(&configuration(before), "new").unwrap();
            assert_eq!(patch["metadata"], json!({"uid": "1", "resourceVersion": "7"}));
            let names: Vec<_> = patch["webhooks"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
            assert_eq!(
                names,
                ["pods.placement.virtual-kubelet.io", "namespaces.placement.virtual-kubelet.io"]
            );
            assert_eq!(patch["webhooks"][0]["clientConfig"], json!({"caBundle": "bmV3"}));
        }
        assert_eq!(patch(&configuration(Some("new")), "new"), None);
    }

    #[test]
    fn webhooks_of_others_keep_their_ca() {
        let mut configuration = configuration(Some("old"));
        for webhook in configuration.webhooks.iter_mut().flatten() {
            webhook.name = webhook.name.replace("placement.virtual-kubelet.io", "example.com");
        }
        assert_eq!(patch(&configuration, "new"), None);
    }
}
