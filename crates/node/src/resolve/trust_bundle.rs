//! Reads ClusterTrustBundles, if the API server supports them.

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use vk_kube::{Client, Kind, Objects, Selector};
use vk_provider::{Error, Result};

use super::{fetched_objects::TrustBundleKey, read_error_kind};

/// The PEM certificates of every selected bundle; empty if no bundle matches or the API server does not have the kind.
pub(super) async fn read(client: &Client, key: &TrustBundleKey) -> Result<Vec<String>> {
    let all = Objects::<ClusterTrustBundle>::all(client.clone());
    let found = match key {
        TrustBundleKey::Name(name) => all.get(name).await.map(|bundle| vec![bundle]),
        TrustBundleKey::Signer { selector: None, .. } => Ok(Vec::new()),
        TrustBundleKey::Signer { signer, selector: Some(labels) } => {
            let fields = Some(format!("spec.signerName={signer}"));
            let labels = Some(labels.clone()).filter(|labels| !labels.is_empty());
            all.list(&Selector { fields, labels }).await.map(|listing| listing.objects)
        }
    };
    match found {
        Ok(bundles) => Ok(bundles.into_iter().map(|bundle| bundle.spec.trust_bundle).collect()),
        // Also if the API server has no ClusterTrustBundles.
        Err(error) if matches!(error.kind, Kind::NotFound | Kind::NotServed) => Ok(Vec::new()),
        Err(error) => Err(Error::new(read_error_kind(&error), "read ClusterTrustBundles").caused_by(error)),
    }
}
