//! What a token says about itself.

use std::fmt;

use base64::{
    Engine as _,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::HeaderValue;
use serde::Deserialize;
use serde_json::{Value, json};

/// Reads what API servers read.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceAccountName {
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    #[serde(default)]
    aud: Value,
}

// === impl ServiceAccountName ===

impl ServiceAccountName {
    /// The ServiceAccount whose bearer token is in this header. The token is not verified: it is our own.
    pub(super) fn of(authorization: &HeaderValue) -> Option<Self> {
        let (scheme, token) = authorization.to_str().ok()?.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let subject = claims(token.trim())?.sub;
        let (namespace, name) = subject.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        Some(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for ServiceAccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether a token is for this audience and no other.
pub(super) fn is_only_for(token: &str, audience: &str) -> bool {
    claims(token).is_some_and(|claims| claims.aud == json!([audience]) || claims.aud == json!(audience))
}

/// The payload of a JWT.
fn claims(token: &str) -> Option<Claims> {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    serde_json::from_slice(&BASE64.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{URL_SAFE as PADDED, URL_SAFE_NO_PAD as UNPADDED};

    use super::*;

    fn account(authorization: &str) -> Option<String> {
        ServiceAccountName::of(&HeaderValue::from_str(authorization).unwrap()).map(|name| name.to_string())
    }

    fn jwt(claims: &Value) -> String {
        format!("e30.{}.c2ln", UNPADDED.encode(claims.to_string()))
    }

    #[test]
    fn a_token_of_a_service_account_is_known_by_its_subject() {
        let claims = json!({"sub": "system:serviceaccount:team:asker", "aud": ["x"], "exp": 1});
        let token = jwt(&claims);
        for scheme in ["Bearer ", "bearer ", "Bearer   "] {
            assert_eq!(account(&format!("{scheme}{token}")).as_deref(), Some("team/asker"), "{scheme:?}");
        }
        // What Go's decoder also reads: a payload with padding, and bits after the last byte.
        for spaces in ["", " ", "  "] {
            let padded = PADDED.encode(format!("{claims}{spaces}"));
            assert_eq!(account(&format!("Bearer e30.{padded}.c2ln")).as_deref(), Some("team/asker"));
        }
        let payload = UNPADDED.encode(r#"{"sub":"system:serviceaccount:a:b"}"#);
        let trailing = format!("{}1", payload.strip_suffix('0').unwrap());
        assert_eq!(account(&format!("Bearer e30.{trailing}.c2ln")).as_deref(), Some("a/b"));
    }

    #[test]
    fn other_tokens_are_of_no_service_account() {
        for subject in
            ["jane", "system:node:vk", "system:serviceaccount:team", "oidc:system:serviceaccount:a:b"]
        {
            assert_eq!(account(&format!("Bearer {}", jwt(&json!({"sub": subject})))), None, "{subject}");
        }
        let token = jwt(&json!({"sub": "system:serviceaccount:team:asker"}));
        for other in ["hush", "Bearer hush", "Bearer a.b.c", "Bearer ..", "Bearer ", "Basic aHVzaA=="] {
            assert_eq!(account(other), None, "{other}");
        }
        assert_eq!(account(&format!("Basic {token}")), None);
        assert_eq!(account(&format!("Bearer {token}.more")), None);
        assert_eq!(account(&format!("Bearer {}", jwt(&json!({"iss": "x"})))), None);
    }

    #[test]
    fn a_token_for_several_audiences_is_not_only_for_one() {
        let audience = |aud: Value| is_only_for(&jwt(&json!({"sub": "x", "aud": aud})), "placement");
        assert!(audience(json!(["placement"])) && audience(json!("placement")));
        for other in [json!(["placement", "api"]), json!(["api"]), json!([]), Value::Null] {
            assert!(!audience(other.clone()), "{other}");
        }
        assert!(!is_only_for("opaque", "placement"));
        assert!(!is_only_for(&jwt(&json!({"sub": "x"})), "placement"));
    }
}
