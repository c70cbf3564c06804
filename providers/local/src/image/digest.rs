//! Content digests.

use std::{fmt, str::FromStr};

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::{Error, Result};

/// A SHA-256 digest, written as `sha256:` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// Computes a digest incrementally.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

// === impl Digest ===

impl Digest {
    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The hex digits alone.
    pub fn hex(&self) -> String {
        use fmt::Write as _;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Parses 64 hex digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        // Upper case would give the same content two names.
        if digits.len() != 64 || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut sum = [0; 32];
        for (byte, pair) in sum.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(sum))
    }

    /// The chain id of a layer: two images share an unpacked layer only if all layers below are the same, too.
    pub(crate) fn chain(below: Option<Self>, layer: Self) -> Self {
        below.map_or(layer, |below| Self::of(format!("{below} {layer}").as_bytes()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.strip_prefix("sha256:").and_then(Self::from_hex).ok_or_else(|| {
            Error::invalid(format!("digest {text:?}: must be sha256: and 64 lower-case hexadecimal digits"))
        })
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

// === impl Hasher ===

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut sum = [0; 32];
        sum.copy_from_slice(self.0.finish().as_ref());
        Digest(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_digest_is_written_as_in_registries() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>().unwrap(), Digest::of(b""));
    }

    #[test]
    fn other_formats_are_rejected_with_a_hint() {
        for wrong in [
            "",
            "sha256:",
            "sha512:00",
            &EMPTY[7..],
            &EMPTY.to_uppercase(),
            &format!("{EMPTY}0"),
            "sha256:+3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85",
        ] {
            let error = wrong.parse::<Digest>().unwrap_err();
            assert!(error.message().contains("64 lower-case hexadecimal digits"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_chain_id_depends_on_all_layers_below() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(Digest::chain(None, a), a);
        assert_ne!(Digest::chain(Some(a), b), Digest::chain(Some(b), b));
        assert_eq!(Digest::chain(Some(a), b), Digest::of(format!("{a} {b}").as_bytes()));
    }
}
