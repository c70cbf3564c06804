//! Who may call: access keys, temporary credentials, permissions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};

/// How far the date of a request may be off.
pub(crate) const MAX_SKEW: SignedDuration = SignedDuration::from_mins(15);

/// An access key.
#[derive(Clone)]
pub struct AccessKey {
    secret: String,
    /// Of temporary credentials.
    token: Option<String>,
    expires: Option<Timestamp>,
    is_active: bool,
}

/// The account.
#[derive(Clone, Default)]
pub(crate) struct Account {
    pub(crate) keys: BTreeMap<String, AccessKey>,
    /// Nonces of valid requests, until their dates are too old anyway.
    pub(crate) nonces: HashMap<String, Timestamp>,
    /// Actions that are not allowed.
    pub(crate) denied: BTreeSet<String>,
    /// The account owes money.
    pub(crate) is_overdrawn: bool,
}

// === impl AccessKey ===

impl AccessKey {
    /// A key that does not expire.
    pub fn new(secret: impl Into<String>) -> Self {
        Self { secret: secret.into(), token: None, expires: None, is_active: true }
    }

    /// Temporary credentials.
    #[must_use]
    pub fn with_token(self, token: impl Into<String>, expires: Timestamp) -> Self {
        Self { token: Some(token.into()), expires: Some(expires), ..self }
    }

    /// A key that is disabled.
    #[must_use]
    pub fn disabled(self) -> Self {
        Self { is_active: false, ..self }
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

// === impl Account ===

impl Account {
    /// Whether a nonce is new. It is not afterwards.
    pub(crate) fn take_nonce(&mut self, nonce: &str, now: Timestamp) -> bool {
        if self.nonces.len() > 20_000 {
            self.nonces.retain(|_, seen| now.duration_since(*seen) < MAX_SKEW * 2);
        }
        self.nonces.insert(nonce.to_owned(), now).is_none()
    }
}
