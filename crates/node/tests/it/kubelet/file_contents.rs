//! The contents of a file in a form that is readable in a recording and comparable between runs.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::recording::Placeholders;

/// Larger files are recorded as a digest.
const LARGE: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Contents {
    Text(String),
    Base64(String),
    Large {
        size: usize,
        sha256: String,
    },
    /// A ServiceAccount token, by its claims.
    Token(Token),
    /// Not readable by the container.
    Unreadable,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Token {
    audiences: Vec<String>,
    subject: String,
    pod: String,
    lifetime_seconds: i64,
}

// === impl Contents ===

impl Contents {
    pub(super) fn new(bytes: &[u8], words: &Placeholders) -> Self {
        if bytes.len() > LARGE {
            return Self::Large { size: bytes.len(), sha256: sha256(bytes) };
        }
        let Ok(text) = std::str::from_utf8(bytes) else { return Self::Base64(base64(bytes)) };
        if let Some(token) = Token::read(text, words) {
            return Self::Token(token);
        }
        Self::Text(words.replace(&sort_certificates(&without_kubelet_annotations(text))))
    }
}

impl Token {
    fn read(text: &str, words: &Placeholders) -> Option<Self> {
        let mut parts = text.split('.');
        let (header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
        let header: Value = serde_json::from_slice(&base64url(header)?).ok()?;
        header.get("alg")?;
        let claims: Value = serde_json::from_slice(&base64url(claims)?).ok()?;
        let list = claims["aud"].as_array()?;
        Some(Self {
            audiences: list.iter().map(|audience| audience.as_str().unwrap_or_default().to_owned()).collect(),
            subject: words.replace(claims["sub"].as_str()?),
            pod: words.replace(claims["kubernetes.io"]["pod"]["uid"].as_str()?),
            lifetime_seconds: claims["exp"].as_i64()? - claims["iat"].as_i64()?,
        })
    }
}

/// Drops the annotations that the kubelet adds to its copy of a pod.
fn without_kubelet_annotations(text: &str) -> String {
    if !text.contains("kubernetes.io/config.") {
        return text.to_owned();
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("kubernetes.io/config.")).collect();
    lines.join("\n")
}

/// Sorts certificates, whose order is random in a kubelet.
fn sort_certificates(text: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----\n";
    if !text.ends_with(END) {
        return text.to_owned();
    }
    // Not a set, which would hide duplicates.
    let mut certificates: Vec<&str> = text.split_inclusive(END).collect();
    certificates.sort_unstable();
    certificates.concat()
}

/// In hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in digest(&SHA256, bytes).as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn base64(bytes: &[u8]) -> String {
    json!(ByteString(bytes.to_vec())).as_str().unwrap().to_owned()
}

/// Kubernetes' own byte string is base64 in JSON.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    serde_json::from_value::<ByteString>(json!(text)).ok().map(|bytes| bytes.0)
}

fn base64url(text: &str) -> Option<Vec<u8>> {
    let mut text = text.replace('-', "+").replace('_', "/");
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    from_base64(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_compared_in_any_order_and_counted() {
        let one = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n";
        let two = "-----BEGIN CERTIFICATE-----\nBB\n-----END CERTIFICATE-----\n";
        let of = |text: String| Contents::new(text.as_bytes(), &Placeholders::default());
        assert_eq!(of(format!("{one}{two}")), of(format!("{two}{one}")));
        assert_ne!(of(format!("{one}{two}{one}")), of(format!("{one}{two}")));
    }

    #[test]
    fn a_token_is_compared_by_its_claims() {
        let part = |value: Value| base64(value.to_string().as_bytes()).replace('=', "");
        let token = |end: i64| {
            let header = part(json!({"alg": "RS256"}));
            let claims = part(json!({
                "aud": ["vault"], "sub": "system:serviceaccount:ns:a", "iat": 100, "exp": end,
                "kubernetes.io": {"pod": {"uid": "u"}},
            }));
            Contents::new(format!("{header}.{claims}.c2ln").as_bytes(), &Placeholders::default())
        };
        assert!(matches!(token(700), Contents::Token(_)));
        assert_ne!(token(700), token(701));
        assert!(matches!(Contents::new(b"a.b.c", &Placeholders::default()), Contents::Text(_)));
    }
}
