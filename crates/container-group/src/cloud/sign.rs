//! Request signatures.
//!
//! A cloud accepts a signature once, and for some minutes: each [`Attempt`] has its own time and nonce, and a retry is signed
//! anew. A scheme takes the request as it is and returns it with what the signature adds to headers or parameters.

mod acs3;
mod rpc;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use aws_lc_rs::{digest, hmac};
use jiff::Timestamp;
use rand::{Rng, RngExt as _};

use super::{credentials::Credentials, request::Request};

/// How requests are signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Alibaba's ACS3-HMAC-SHA256: a signature of method, path, query, headers and body in the header `Authorization`.
    #[default]
    Acs3,
    /// Alibaba's first signature, HMAC-SHA1 over the parameters of an RPC call: for endpoints that do not know ACS3.
    Rpc,
}

/// What makes a signature unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The time of the request.
    pub time: Timestamp,
    /// A value that is used once.
    pub nonce: String,
}

// === impl Scheme ===

impl Scheme {
    /// The request with its signature. `host` is the value of the header `Host` that is sent.
    #[must_use]
    pub fn sign(
        self,
        request: &Request,
        host: &str,
        credentials: &Credentials,
        attempt: &Attempt,
    ) -> Request {
        match self {
            Self::Acs3 => acs3::sign(request, host, credentials, attempt),
            Self::Rpc => rpc::sign(request, credentials, attempt),
        }
    }
}

// === impl Attempt ===

impl Attempt {
    /// An attempt at this time.
    pub fn new(time: Timestamp, rng: &mut impl Rng) -> Self {
        Self { time, nonce: format!("{:032x}", rng.random::<u128>()) }
    }

    /// The time in whole seconds, as RFC 3339 in UTC.
    pub(super) fn date(&self) -> String {
        self.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hmac(algorithm: hmac::Algorithm, key: &str, text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(algorithm, key.as_bytes()), text.as_bytes())
}
