//! Registry credentials from the pod's pull secrets, in both Docker formats.
//!
//! Entries match images like in the kubelet: `*` matches a label of the host name, port and number of labels must be equal,
//! and the entry's path must be a prefix of the image's. The longest entry comes first. Credentials of the default registry
//! apply to images without a registry.

mod location;

use std::{collections::BTreeMap, sync::Arc};

use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use k8s_openapi::api::core::v1::Secret;
use secrecy::SecretString;
use serde::Deserialize;
use vk_provider::{
    Error, Result,
    resolve::{PullCredentials, Reference, ReferenceKind, RegistryLogin},
};

use self::location::Location;
use super::fetched_objects::unresolved;

/// Docker's entry for its own registry, without scheme and version.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// All credentials that match the image, best first; empty for an anonymous pull. Secrets of other types and entries
/// without a valid location are skipped; a secret that cannot be parsed is an error, as in the kubelet.
pub(crate) fn credentials(image: &str, secrets: &[Arc<Secret>]) -> Result<Vec<PullCredentials>> {
    let repository = location::repository(image)?;
    let target = Location::parse(&repository).ok_or_else(|| {
        Error::invalid(format!("couldn't parse image name {image:?}: invalid reference format"))
    })?;
    // Sorted: in reverse order an entry with a longer path comes before its prefix.
    let mut known: BTreeMap<String, Vec<PullCredentials>> = BTreeMap::new();
    for secret in secrets {
        for (location, entry) in entries(secret)? {
            let login = entry.unwrap_or_default().login(secret)?;
            let (Some(key), Some(login)) = (location::key(&location), login) else {
                continue;
            };
            known.entry(key).or_default().push(PullCredentials { registry: location, login });
        }
    }
    let matching =
        known.iter().rev().filter(|(key, _)| Location::parse(key).is_some_and(|key| key.matches(&target)));
    let matching: Vec<PullCredentials> = matching.flat_map(|(_, credentials)| credentials.clone()).collect();
    if matching.is_empty() && location::names_default_registry(&repository) {
        return Ok(known.remove(DEFAULT_REGISTRY).unwrap_or_default());
    }
    Ok(matching)
}

/// `~/.docker/config.json`.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: Option<BTreeMap<String, Option<Entry>>>,
}

/// Credentials of one registry.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    /// `USER:PASSWORD` in base64; takes precedence over both.
    auth: Option<String>,
    #[serde(rename = "identitytoken")]
    identity_token: Option<String>,
    #[serde(rename = "registrytoken")]
    registry_token: Option<String>,
}

fn entries(secret: &Secret) -> Result<BTreeMap<String, Option<Entry>>> {
    let content =
        |key: &str| secret.data.as_ref()?.get(key).map(|bytes| &bytes.0).filter(|bytes| !bytes.is_empty());
    match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => {
            let Some(content) = content(".dockerconfigjson") else { return Ok(BTreeMap::new()) };
            let config: Config =
                serde_json::from_slice(content).map_err(|error| parse_error(secret, &error))?;
            Ok(config.auths.unwrap_or_default())
        }
        Some("kubernetes.io/dockercfg") => {
            let Some(content) = content(".dockercfg") else { return Ok(BTreeMap::new()) };
            serde_json::from_slice(content).map_err(|error| parse_error(secret, &error))
        }
        _ => Ok(BTreeMap::new()),
    }
}

/// The parser's message would show the content, so the error only has its position.
fn parse_error(secret: &Secret, error: &serde_json::Error) -> Error {
    let reason = format!("not a Docker config, at line {} column {}", error.line(), error.column());
    invalid_secret(secret, &reason)
}

fn invalid_secret(secret: &Secret, why: &str) -> Error {
    let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    let reference = Reference::new(ReferenceKind::Secret, namespace, name);
    unresolved(reference, format!("pull secret {namespace}/{name} cannot be used: {why}"))
}

impl Entry {
    /// `None` for an empty entry, as left by a Docker credential helper. The kubelet does not support tokens and would send
    /// an empty password.
    fn login(self, secret: &Secret) -> Result<Option<RegistryLogin>> {
        let given = |value: Option<String>| value.filter(|value| !value.is_empty());
        if let Some(token) = given(self.registry_token) {
            return Ok(Some(RegistryLogin::RegistryToken(SecretString::from(token))));
        }
        if let Some(token) = given(self.identity_token) {
            return Ok(Some(RegistryLogin::IdentityToken(SecretString::from(token))));
        }
        let (username, password) = match given(self.auth) {
            Some(auth) => decode(&auth).map_err(|why| invalid_secret(secret, why))?,
            None => (self.username.unwrap_or_default(), self.password.unwrap_or_default()),
        };
        if username.is_empty() && password.is_empty() {
            return Ok(None);
        }
        Ok(Some(RegistryLogin::Basic { username, password: SecretString::from(password) }))
    }
}

/// Decodes user and password of the field `auth`, with or without padding and line breaks.
fn decode(auth: &str) -> Result<(String, String), &'static str> {
    // Like Go's decoder, which ignores trailing bits.
    const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let padded = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        LENIENT.with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
    );
    let unpadded = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        LENIENT.with_decode_padding_mode(DecodePaddingMode::RequireNone),
    );
    let engine = if auth.trim().ends_with('=') { padded } else { unpadded };
    let text: String = auth.chars().filter(|character| !matches!(character, '\r' | '\n')).collect();
    let decoded = engine.decode(text).map_err(|_| "an auth field is not base64")?;
    let decoded = String::from_utf8(decoded).map_err(|_| "an auth field is not UTF-8")?;
    let (username, password) = decoded
        .split_once(':')
        .ok_or("unable to parse auth field, must be formatted as base64(username:password)")?;
    Ok((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests;
