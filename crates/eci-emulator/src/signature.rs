//! Verification of signatures: ACS3-HMAC-SHA256 and version 1 of RPC.

use std::fmt::Write as _;

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{SHA256, digest},
    hmac::{self, HMAC_SHA1_FOR_LEGACY_USE_ONLY, HMAC_SHA256},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;

use crate::{
    account::{Account, MAX_SKEW},
    error::{ApiError, Result},
    http::{HttpRequest, encode, encode_pairs},
};

const ALGORITHM: &str = "ACS3-HMAC-SHA256";

/// What a request claims.
struct Claim {
    key: String,
    token: Option<String>,
    date: String,
    nonce: String,
    signature: String,
    /// What is signed, and how the signature follows from it and the secret.
    text: String,
    sign: fn(&str, &str) -> String,
}

/// Whether the request is signed by a key of the account, fresh, and not seen before.
pub(crate) fn verify(request: &HttpRequest, account: &mut Account, now: Timestamp) -> Result<()> {
    let claim = match request.header("authorization") {
        Some(authorization) => acs3(request, authorization)?,
        None if request.parameter("Signature").is_some() => rpc(request)?,
        None => return Err(ApiError::missing("AccessKeyId")),
    };
    let key = account.keys.get(&claim.key).ok_or_else(|| {
        ApiError::new(404, "InvalidAccessKeyId.NotFound", "Specified access key is not found.")
    })?;
    if !key.is_active() {
        return Err(ApiError::new(403, "InvalidAccessKeyId.Inactive", "Specified access key is disabled."));
    }
    match (key.token(), claim.token.as_deref()) {
        (Some(_), None) => {
            return Err(ApiError::new(
                400,
                "MissingSecurityToken",
                "SecurityToken is mandatory for this key.",
            ));
        }
        (own, Some(token)) if own != Some(token) => {
            return Err(ApiError::new(
                400,
                "InvalidSecurityToken.MismatchWithAccessKey",
                "Specified SecurityToken mismatch with the AccessKey.",
            ));
        }
        _ => {}
    }
    if key.has_expired(now) {
        let message = "Specified SecurityToken is expired.";
        return Err(ApiError::new(400, "InvalidSecurityToken.Expired", message));
    }
    let date: Timestamp = claim.date.parse().map_err(|_| {
        ApiError::new(
            400,
            "InvalidTimeStamp.Format",
            "Specified time stamp or date value is not well formatted.",
        )
    })?;
    if date.duration_since(now).abs() > MAX_SKEW {
        let message = "Specified time stamp or date value is expired.";
        return Err(ApiError::new(400, "InvalidTimeStamp.Expired", message));
    }
    let expected = (claim.sign)(key.secret(), &claim.text);
    if verify_slices_are_equal(expected.as_bytes(), claim.signature.as_bytes()).is_err() {
        // The real service repeats what it has signed, secrets included.
        return Err(ApiError::new(
            400,
            "SignatureDoesNotMatch",
            format!(
                "Specified signature is not matched with our calculation. server string to sign is:{}",
                claim.text
            ),
        ));
    }
    if claim.nonce.is_empty() {
        return Err(ApiError::missing("SignatureNonce"));
    }
    if !account.take_nonce(&claim.nonce, now) {
        let message = "Specified signature nonce was used already.";
        return Err(ApiError::new(400, "SignatureNonceUsed", message));
    }
    Ok(())
}

fn acs3(request: &HttpRequest, authorization: &str) -> Result<Claim> {
    let malformed = |what: &str| {
        ApiError::new(400, "IncompleteSignature", format!("The request signature does not conform: {what}."))
    };
    let fields = authorization.strip_prefix(ALGORITHM).ok_or_else(|| malformed("algorithm"))?;
    let field = |name: &str| {
        let mut fields = fields.split(',').filter_map(|field| field.trim().split_once('='));
        fields.find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
    };
    let names = field("SignedHeaders").ok_or_else(|| malformed("SignedHeaders"))?;
    let signed: Vec<&str> = names.split(';').collect();
    for (name, _) in &request.headers {
        if (name == "host" || name.starts_with("x-acs-")) && !signed.contains(&name.as_str()) {
            return Err(malformed(name));
        }
    }
    let payload = hex(digest(&SHA256, &request.body).as_ref());
    if request.header("x-acs-content-sha256") != Some(&payload) {
        return Err(malformed("x-acs-content-sha256 is not that of the body"));
    }
    let mut lines = String::new();
    for name in &signed {
        let mut values: Vec<&str> = request
            .headers
            .iter()
            .filter(|(other, _)| other == name)
            .map(|(_, value)| value.trim())
            .collect();
        if values.is_empty() {
            return Err(malformed(name));
        }
        values.sort_unstable();
        let _ = writeln!(lines, "{name}:{}", values.join(","));
    }
    let path: Vec<String> = request.path.split('/').map(encode).collect();
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{payload}",
        request.method,
        path.join("/"),
        encode_pairs(&request.query)
    );
    let header = |name: &str| request.header(name).unwrap_or_default().to_owned();
    Ok(Claim {
        key: field("Credential").ok_or_else(|| malformed("Credential"))?,
        token: request.header("x-acs-security-token").map(str::to_owned),
        date: header("x-acs-date"),
        nonce: header("x-acs-signature-nonce"),
        signature: field("Signature").ok_or_else(|| malformed("Signature"))?,
        text: format!("{ALGORITHM}\n{}", hex(digest(&SHA256, canonical.as_bytes()).as_ref())),
        sign: |secret, text| {
            hex(hmac::sign(&hmac::Key::new(HMAC_SHA256, secret.as_bytes()), text.as_bytes()).as_ref())
        },
    })
}

fn rpc(request: &HttpRequest) -> Result<Claim> {
    let parameter = |name: &str| request.parameter(name).map(str::to_owned);
    let required = |name: &str| parameter(name).ok_or_else(|| ApiError::missing(name));
    if required("SignatureMethod")? != "HMAC-SHA1" || required("SignatureVersion")? != "1.0" {
        let message = "Only HMAC-SHA1 of version 1.0 is supported.";
        return Err(ApiError::new(400, "InvalidSignatureMethod", message));
    }
    let signed = request.parameters().filter(|(name, _)| name != "Signature");
    Ok(Claim {
        key: required("AccessKeyId")?,
        token: parameter("SecurityToken"),
        date: required("Timestamp")?,
        nonce: required("SignatureNonce")?,
        signature: required("Signature")?,
        text: format!("{}&%2F&{}", request.method, encode(&encode_pairs(signed))),
        sign: |secret, text| {
            let key = hmac::Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, format!("{secret}&").as_bytes());
            BASE64_STANDARD.encode(hmac::sign(&key, text.as_bytes()))
        },
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
