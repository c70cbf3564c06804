//! ACS3-HMAC-SHA256.

use std::fmt::Write as _;

use aws_lc_rs::hmac::HMAC_SHA256;
use secrecy::ExposeSecret as _;

use super::{Attempt, hex, hmac, sha256};
use crate::cloud::{
    credentials::Credentials,
    request::{Header, Request},
};

const ALGORITHM: &str = "ACS3-HMAC-SHA256";

/// Signs all headers of the request, the host, and what the signature itself adds. Headers that a proxy may change should be
/// added later.
pub(super) fn sign(request: &Request, host: &str, credentials: &Credentials, attempt: &Attempt) -> Request {
    let payload = sha256(request.payload());
    let mut signed = request
        .clone()
        .header("host", host)
        .header("x-acs-date", attempt.date())
        .header("x-acs-signature-nonce", &attempt.nonce)
        .header("x-acs-content-sha256", &payload);
    if let Some(token) = &credentials.security_token {
        signed = signed
            .header("x-acs-accesskey-id", &credentials.access_key_id)
            .header("x-acs-security-token", token.expose_secret());
    }
    let (lines, names) = canonical_headers(&signed);
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{payload}",
        signed.method(),
        signed.encoded_path(),
        signed.encoded_query(),
    );
    let text = format!("{ALGORITHM}\n{}", sha256(canonical.as_bytes()));
    let signature = hex(hmac(HMAC_SHA256, credentials.access_key_secret.expose_secret(), &text).as_ref());
    let id = &credentials.access_key_id;
    signed.header(
        "authorization",
        format!("{ALGORITHM} Credential={id},SignedHeaders={names},Signature={signature}"),
    )
}

/// One line for each name, and the list of names.
fn canonical_headers(request: &Request) -> (String, String) {
    let mut headers: Vec<&Header> = request.headers().iter().collect();
    headers.sort_unstable_by(|left, right| left.order(right));
    let (mut lines, mut names) = (String::new(), Vec::new());
    for same in headers.chunk_by(|left, right| left.name == right.name) {
        let name = same[0].name.as_str();
        let values: Vec<&str> = same.iter().map(|header| header.value.trim()).collect();
        let _ = writeln!(lines, "{name}:{}", values.join(","));
        names.push(name);
    }
    (lines, names.join(";"))
}
