//! Registry credentials from the pod's pull secrets, in both of docker's formats.
//!
//! Which entry fits an image is decided as in a kubelet: the entry's host may have `*` for a part between dots, port and
//! number of parts must be equal, its path must be the beginning of the image's; the longest entry comes first, and what
//! is written for the default registry serves images that name none.

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
    resolve::{PullCredentials, Reference, ReferenceKind},
};

use self::location::Location;
use super::objects::unresolved;

/// The entry that docker writes for its own registry, without scheme and version.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// All credentials that fit the image, best first; empty when it is to be pulled anonymously. Secrets of other types, and
/// entries that name no place, are passed over; a secret that cannot be read is an error, as in a kubelet.
pub(crate) fn credentials(image: &str, secrets: &[Arc<Secret>]) -> Result<Vec<PullCredentials>> {
    let repository = location::repository(image)?;
    let target = Location::parse(&repository).ok_or_else(|| {
        Error::invalid(format!("couldn't parse image name {image:?}: invalid reference format"))
    })?;
    // Sorted, so that backwards an entry with a longer path comes before the one that it begins with.
    let mut known: BTreeMap<String, Vec<PullCredentials>> = BTreeMap::new();
    for secret in secrets {
        for (place, entry) in entries(secret)? {
            let credentials = entry.unwrap_or_default().credentials(secret)?;
            let (Some(key), Some(credentials)) = (location::key(&place), credentials) else {
                continue;
            };
            known.entry(key).or_default().push(credentials);
        }
    }
    let fitting =
        known.iter().rev().filter(|(key, _)| Location::parse(key).is_some_and(|key| key.fits(&target)));
    let fitting: Vec<PullCredentials> = fitting.flat_map(|(_, credentials)| credentials.clone()).collect();
    if fitting.is_empty() && location::names_default_registry(&repository) {
        return Ok(known.remove(DEFAULT_REGISTRY).unwrap_or_default());
    }
    Ok(fitting)
}

/// `~/.docker/config.json`.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: Option<BTreeMap<String, Option<Entry>>>,
}

/// What is known about one registry.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    /// `USER:PASSWORD` in base64; wins over the two.
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
                serde_json::from_slice(content).map_err(|error| unreadable(secret, &error))?;
            Ok(config.auths.unwrap_or_default())
        }
        Some("kubernetes.io/dockercfg") => {
            let Some(content) = content(".dockercfg") else { return Ok(BTreeMap::new()) };
            serde_json::from_slice(content).map_err(|error| unreadable(secret, &error))
        }
        _ => Ok(BTreeMap::new()),
    }
}

/// The parser's own words would show what stands there, so only the place is told.
fn unreadable(secret: &Secret, error: &serde_json::Error) -> Error {
    let place = format!("not what docker writes, at line {} column {}", error.line(), error.column());
    broken(secret, &place)
}

fn broken(secret: &Secret, why: &str) -> Error {
    let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    let reference = Reference::new(ReferenceKind::Secret, namespace, name);
    unresolved(reference, format!("pull secret {namespace}/{name} cannot be used: {why}"))
}

impl Entry {
    /// `None` for an entry that says nothing, as a helper program of docker leaves it. Tokens are more than a kubelet
    /// reads: it would send an empty password.
    fn credentials(self, secret: &Secret) -> Result<Option<PullCredentials>> {
        let given = |value: Option<String>| value.filter(|value| !value.is_empty());
        if let Some(token) = given(self.registry_token) {
            return Ok(Some(PullCredentials::RegistryToken(SecretString::from(token))));
        }
        if let Some(token) = given(self.identity_token) {
            return Ok(Some(PullCredentials::IdentityToken(SecretString::from(token))));
        }
        let (username, password) = match given(self.auth) {
            Some(auth) => decode(&auth).map_err(|why| broken(secret, why))?,
            None => (self.username.unwrap_or_default(), self.password.unwrap_or_default()),
        };
        if username.is_empty() && password.is_empty() {
            return Ok(None);
        }
        Ok(Some(PullCredentials::Basic { username, password: SecretString::from(password) }))
    }
}

/// User and password of the field `auth`, with or without padding, which may be broken into lines.
fn decode(auth: &str) -> Result<(String, String), &'static str> {
    // As Go's decoder, which does not mind bits that are left over at the end.
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
    let decoded = engine.decode(text).map_err(|_| "a field auth is not base64")?;
    let decoded = String::from_utf8(decoded).map_err(|_| "a field auth is not text")?;
    let (username, password) = decoded
        .split_once(':')
        .ok_or("unable to parse auth field, must be formatted as base64(username:password)")?;
    Ok((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests;
