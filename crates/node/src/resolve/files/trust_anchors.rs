//! Projected ClusterTrustBundles: their selection, and their certificates as one file.

use std::{collections::BTreeSet, fmt::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::core::v1::ClusterTrustBundleProjection, apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use vk_provider::{
    Error, Result,
    resolve::{Reference, ReferenceKind},
};

use super::super::fetched_objects::{
    FetchedObjects, ResolveWarning, TrustBundleKey, add_warning, unresolved,
};

/// The selected bundles.
pub(super) fn key(bundle: &ClusterTrustBundleProjection) -> Result<TrustBundleKey> {
    if let Some(name) = &bundle.name {
        return Ok(TrustBundleKey::Name(name.clone()));
    }
    let Some(signer) = &bundle.signer_name else {
        return Err(Error::invalid(
            "ClusterTrustBundle projection requires either name or signerName to be set",
        ));
    };
    let selector = bundle.label_selector.as_ref().map(selector).transpose()?;
    Ok(TrustBundleKey::Signer { signer: signer.clone(), selector })
}

/// The certificates without duplicates. The kubelet's order is random per process; ours is sorted, so that the file only
/// changes when the certificates change.
pub(super) fn anchors(
    bundle: &ClusterTrustBundleProjection,
    objects: &FetchedObjects,
    warnings: &mut Vec<ResolveWarning>,
) -> Result<Vec<u8>> {
    let key = key(bundle)?;
    let (name, missing) = match &key {
        TrustBundleKey::Name(name) => {
            let missing = format!(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
            );
            (name, missing)
        }
        TrustBundleKey::Signer { signer, .. } => (
            signer,
            "combination of signerName and labelSelector matched zero ClusterTrustBundles".to_owned(),
        ),
    };
    let none = Vec::new();
    let found = match objects.trust_bundles.get(&key) {
        Some(found) => found,
        None if matches!(key, TrustBundleKey::Signer { selector: None, .. }) => &none,
        None => return Err(Error::internal(format!("ClusterTrustBundle {name:?} was not fetched"))),
    };
    if found.is_empty() {
        let reference = Reference::new(ReferenceKind::ClusterTrustBundle, "", name);
        if bundle.optional != Some(true) {
            return Err(unresolved(reference, missing));
        }
        add_warning(warnings, ResolveWarning::MissingOptional(reference));
    }
    let certificates: BTreeSet<Vec<u8>> = found.iter().flat_map(|text| blocks(text)).collect();
    Ok(certificates.iter().map(|certificate| pem(certificate)).collect::<String>().into_bytes())
}

/// A label selector in the API server's query syntax.
fn selector(selector: &LabelSelector) -> Result<String> {
    let mut terms: Vec<(&str, String)> = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        terms.push((key, format!("{key}={value}")));
    }
    for expression in selector.match_expressions.iter().flatten() {
        let key = &expression.key;
        let mut values = expression.values.clone().unwrap_or_default();
        values.sort();
        let values = values.join(",");
        let term = match expression.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            operator => {
                let why = format!(
                    "while parsing label selector: {operator:?} is not a valid label selector operator"
                );
                return Err(Error::invalid(why));
            }
        };
        terms.push((key, term));
    }
    terms.sort_by_key(|(key, _)| *key);
    Ok(terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(","))
}

/// The content of every valid PEM block.
fn blocks(text: &str) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().map(str::trim_end);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) else {
            continue;
        };
        let end = format!("-----END {label}-----");
        let mut body = String::new();
        let mut closed = false;
        for line in lines.by_ref() {
            if line == end {
                closed = true;
                break;
            }
            // Ignore PEM headers, which some tools write.
            if !line.contains(':') {
                body.push_str(line.trim());
            }
        }
        if closed && let Ok(block) = STANDARD.decode(&body) {
            blocks.push(block);
        }
    }
    blocks
}

fn pem(certificate: &[u8]) -> String {
    let body = STANDARD.encode(certificate);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII, so any index is a character boundary.
        let (line, more) = rest.split_at(rest.len().min(64));
        // Written to a string: cannot fail.
        let _ = writeln!(text, "{line}");
        rest = more;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests;
