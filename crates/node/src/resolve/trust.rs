//! ClusterTrustBundles, where the API server has them.

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use vk_kube::{Client, Kind, Objects, Selector};
use vk_provider::{Error, Result};

use super::{objects::TrustKey, unreadable};

/// The certificates of every bundle that is meant, as PEM; none where there is no such bundle, or no such kind.
pub(super) async fn bundles(client: &Client, key: &TrustKey) -> Result<Vec<String>> {
    let all = Objects::<ClusterTrustBundle>::all(client.clone());
    let found = match key {
        TrustKey::Name(name) => all.get(name).await.map(|bundle| vec![bundle]),
        TrustKey::Signer { selector: None, .. } => Ok(Vec::new()),
        TrustKey::Signer { signer, selector: Some(labels) } => {
            let fields = Some(format!("spec.signerName={signer}"));
            let labels = Some(labels.clone()).filter(|labels| !labels.is_empty());
            all.list(&Selector { fields, labels }).await.map(|listing| listing.objects)
        }
    };
    match found {
        Ok(bundles) => Ok(bundles.into_iter().map(|bundle| bundle.spec.trust_bundle).collect()),
        Err(error) if error.kind == Kind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::new(unreadable(&error), "read ClusterTrustBundles").caused_by(error)),
    }
}
