//! Percent-encoding.

use std::fmt::Write as _;

/// Decodes a part of a URL or form. A plus sign is a blank in queries and forms: the vendor's SDK sends it so.
pub(crate) fn decode(encoded: &str, is_query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &tail[2..];
            }
            b'+' if is_query => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The pairs of a query or form, decoded.
pub(crate) fn pairs(encoded: &str) -> Option<Vec<(String, String)>> {
    let pairs = encoded.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name, true)?, decode(value, true)?))
        })
        .collect()
}

/// Encodes all but the unreserved characters of RFC 3986.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// The pairs as signatures want them: sorted, then encoded.
pub(crate) fn encode_pairs<'a>(pairs: impl IntoIterator<Item = &'a (String, String)>) -> String {
    let mut sorted: Vec<_> = pairs.into_iter().collect();
    sorted.sort();
    let encoded: Vec<String> =
        sorted.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    encoded.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plus_sign_is_a_blank_in_queries_only() {
        assert_eq!(decode("a+b%2Bc", true).unwrap(), "a b+c");
        assert_eq!(decode("a+b%2Bc", false).unwrap(), "a+b+c");
        assert_eq!(decode("%zz", false), None);
        assert_eq!(decode("%4", false), None);
        assert_eq!(decode("%ff", false), None);
    }

    #[test]
    fn pairs_are_sorted_and_encoded() {
        let pairs = pairs("b=2&a=x+y&b=%2F&c").unwrap();
        assert_eq!(encode_pairs(&pairs), "a=x%20y&b=%2F&b=2&c=");
    }
}
