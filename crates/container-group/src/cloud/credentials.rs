//! Credentials for the API of a cloud.

mod cache;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt};

use async_trait::async_trait;
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};

pub use self::cache::CachedCredentials;
use super::{error::Result, redaction::Redaction};

/// An access key, temporary ones with a session token.
#[derive(Clone)]
pub struct Credentials {
    /// The id of the access key.
    pub access_key_id: String,
    /// Its secret.
    pub access_key_secret: SecretString,
    /// The session token of temporary credentials.
    pub security_token: Option<SecretString>,
    /// When temporary credentials expire.
    pub expires: Option<Timestamp>,
    /// Where they come from, for users.
    pub source: Cow<'static, str>,
}

/// Where credentials come from.
#[async_trait]
pub trait CredentialSource: Send + Sync + 'static {
    /// Loads or requests credentials. Each call does the work again: [`CachedCredentials`] remembers the result.
    async fn load(&self) -> Result<Credentials>;
}

// === impl Credentials ===

impl Credentials {
    /// A permanent access key.
    pub fn new(access_key_id: impl Into<String>, access_key_secret: impl Into<String>) -> Self {
        Self {
            access_key_id: access_key_id.into(),
            access_key_secret: SecretString::from(access_key_secret.into()),
            security_token: None,
            expires: None,
            source: Cow::Borrowed("the configuration"),
        }
    }

    /// Adds the session token of temporary credentials.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.security_token = Some(SecretString::from(token.into()));
        self
    }

    /// Sets the time when they expire.
    #[must_use]
    pub fn expiring(self, expires: Timestamp) -> Self {
        Self { expires: Some(expires), ..self }
    }

    /// Sets where they come from.
    #[must_use]
    pub fn from_source(self, source: impl Into<Cow<'static, str>>) -> Self {
        Self { source: source.into(), ..self }
    }

    /// Whether they are valid at this time, as far as their expiry tells.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Whether these are the same credentials.
    pub fn is_same(&self, other: &Self) -> bool {
        fn token(credentials: &Credentials) -> Option<&str> {
            credentials.security_token.as_ref().map(SecretString::expose_secret)
        }
        self.access_key_id == other.access_key_id
            && self.access_key_secret.expose_secret() == other.access_key_secret.expose_secret()
            && token(self) == token(other)
    }

    /// Masks the secrets of these credentials.
    pub(super) fn redaction(&self) -> Redaction {
        let secret = Some(self.access_key_secret.expose_secret());
        let token = self.security_token.as_ref().map(SecretString::expose_secret);
        Redaction::new([secret, token].into_iter().flatten())
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("source", &self.source)
            .field("has_token", &self.security_token.is_some())
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Permanent credentials are a source by themselves.
#[async_trait]
impl CredentialSource for Credentials {
    async fn load(&self) -> Result<Self> {
        Ok(self.clone())
    }
}
