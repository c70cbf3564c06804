//! The authentication that a registry asks for.

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// A challenge of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token from a token server.
    Bearer { realm: String, service: Option<String> },
    /// The credentials themselves.
    Basic,
}

impl Challenge {
    /// The first challenge that is supported, tokens first.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = || headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let is_basic = |text: &str| {
            text.trim_start().get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic"))
        };
        texts().find_map(bearer).or_else(|| texts().any(is_basic).then_some(Self::Basic))
    }
}

fn bearer(text: &str) -> Option<Challenge> {
    let (scheme, mut rest) = text.trim_start().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service) = (None, None);
    while let Some((name, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find(',').unwrap_or(after.len())),
        };
        match name.trim_matches([' ', ',']).to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            _ => {}
        }
        rest = after;
    }
    Some(Challenge::Bearer { realm: realm?, service })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;

    use super::*;

    fn challenge(texts: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for text in texts {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_str(text).unwrap());
        }
        Challenge::of(&headers)
    }

    #[test]
    fn challenges_of_registries_are_understood() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(ToOwned::to_owned) })
        };
        for (text, expected) in [
            (
                r#"Bearer realm="https://a.test/token",service="a.test",scope="repository:x:pull,push""#,
                bearer("https://a.test/token", Some("a.test")),
            ),
            (
                r#"bearer service="s, t", Realm="https://a.test/token""#,
                bearer("https://a.test/token", Some("s, t")),
            ),
            ("Bearer realm=https://a.test/token,service=s", bearer("https://a.test/token", Some("s"))),
            (r#"Basic realm="Registry""#, Some(Challenge::Basic)),
            (r#"Bearer service="s""#, None),
            (r#"Bearer realm="unfinished"#, None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(challenge(&[text]), expected, "{text}");
        }
        let both = ["Basic realm=\"x\"", "Bearer realm=\"https://a.test/token\""];
        assert_eq!(challenge(&both), bearer("https://a.test/token", None), "a token if there is a choice");
    }

    proptest! {
        #[test]
        fn no_challenge_causes_a_panic(text in "[ -~]{0,80}") {
            challenge(&[&text, &format!("Bearer {text}")]);
        }
    }
}
