//! The first signature of Alibaba's RPC APIs: HMAC-SHA1 over the parameters of query and form.

use aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use secrecy::ExposeSecret as _;

use super::{Attempt, hmac};
use crate::cloud::{
    credentials::Credentials,
    request::{Request, encode},
};

/// Adds the signature to the query. Headers and other bodies are not signed.
pub(super) fn sign(request: &Request, credentials: &Credentials, attempt: &Attempt) -> Request {
    let mut signed = request
        .clone()
        .parameter("AccessKeyId", &credentials.access_key_id)
        .parameter("SignatureMethod", "HMAC-SHA1")
        .parameter("SignatureVersion", "1.0")
        .parameter("SignatureNonce", &attempt.nonce)
        .parameter("Timestamp", attempt.date());
    if let Some(token) = &credentials.security_token {
        signed = signed.secret_parameter("SecurityToken", token.expose_secret());
    }
    let text = format!("{}&%2F&{}", signed.method(), encode(&signed.encoded_parameters(), ""));
    let key = format!("{}&", credentials.access_key_secret.expose_secret());
    let signature = BASE64_STANDARD.encode(hmac(HMAC_SHA1_FOR_LEGACY_USE_ONLY, &key, &text));
    signed.parameter("Signature", signature)
}
