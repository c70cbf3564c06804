//! Masks secrets in texts that a cloud sends back, before they become part of an error.
//!
//! Clouds repeat what they were sent: a refused value, and with a wrong signature all that was signed. What is found is masked
//! as it is, percent-encoded and in base64, also if only a part of it is repeated.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::request::encode;

/// What stands for a secret.
const MASK: &str = "***";
/// A secret of this length or longer is found by any part of this length.
const PART: usize = 10;
/// Shorter values are not masked: nobody could tell them from ordinary words, and masking them would garble every text.
const SHORTEST: usize = 4;
/// Bytes of a text that are kept.
const MAX_TEXT: usize = 1024;

/// Masks a set of secrets.
pub(super) struct Redaction {
    /// The secrets in all forms.
    forms: Vec<Vec<u8>>,
}

// === impl Redaction ===

impl Redaction {
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut forms = Vec::new();
        for secret in secrets {
            let decoded = BASE64_STANDARD.decode(secret).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            for plain in [Some(secret.to_owned()), decoded].into_iter().flatten() {
                if plain.trim().len() >= SHORTEST {
                    let percent = encode(&plain, "");
                    // A part of the base64 text begins at any of three offsets.
                    forms.extend((0..3).filter_map(|skipped| base64_of_tail(plain.as_bytes(), skipped)));
                    // As in a string that is signed, which is encoded once more.
                    forms.push(encode(&percent, "").into_bytes());
                    forms.push(percent.into_bytes());
                    forms.push(plain.into_bytes());
                }
            }
        }
        forms.sort_unstable();
        forms.dedup();
        Self { forms }
    }

    /// The text on one line, with a bounded length and without secrets.
    pub(super) fn apply(&self, text: &str) -> String {
        // A secret may be longer than what is kept, so the text is masked before it is cut. Nothing reads more than this.
        let text = prefix(text, 8 * MAX_TEXT);
        let bytes = text.as_bytes();
        let mut masked = vec![false; bytes.len()];
        let mut parts: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for (at, part) in bytes.windows(PART).enumerate() {
            parts.entry(part).or_default().push(at);
        }
        for form in &self.forms {
            // Secrets may be long, so their parts are looked up in those of the text.
            for at in form.windows(PART).filter_map(|part| parts.get(part)).flatten() {
                masked[*at..at + PART].fill(true);
            }
            if form.len() < PART {
                for (at, _) in bytes.windows(form.len()).enumerate().filter(|(_, window)| window == form) {
                    masked[at..at + form.len()].fill(true);
                }
            }
        }
        let mut clean = String::new();
        let mut is_masking = false;
        for (at, character) in text.char_indices() {
            if masked[at] {
                if !is_masking {
                    clean.push_str(MASK);
                }
            } else {
                clean.push(if character.is_control() { ' ' } else { character });
            }
            is_masking = masked[at];
        }
        let clean = clean.trim();
        let kept = prefix(clean, MAX_TEXT);
        if kept.len() < clean.len() { format!("{kept}...") } else { kept.to_owned() }
    }
}

/// The base64 text of what follows the first bytes, without the last characters, which depend on what comes after it.
fn base64_of_tail(bytes: &[u8], skipped: usize) -> Option<Vec<u8>> {
    let tail = bytes.get(skipped..)?;
    let whole = tail.len() / 3 * 3;
    (whole >= 6).then(|| BASE64_STANDARD.encode(&tail[..whole]).into_bytes())
}

/// The longest prefix that is not longer than this.
fn prefix(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "correct horse battery staple";

    #[test]
    fn a_secret_is_masked_in_every_form() {
        let redaction = Redaction::new([SECRET]);
        let percent = encode(SECRET, "");
        for form in [
            SECRET.to_owned(),
            BASE64_STANDARD.encode(SECRET),
            BASE64_STANDARD.encode(format!("x{SECRET}y")),
            BASE64_STANDARD.encode(format!("xy{SECRET}")),
            encode(&percent, ""),
            percent,
        ] {
            let clean = redaction.apply(&format!("the value {form} is invalid"));
            assert!(clean.starts_with("the value ") && clean.contains("***"), "{clean}");
            assert!(clean.ends_with(" is invalid"), "{clean}");
            for at in 0..form.len() - 2 * PART {
                assert!(!clean.contains(&form[at..at + 2 * PART]), "{clean}");
            }
        }
    }

    #[test]
    fn a_part_of_a_secret_is_masked() {
        let clean = Redaction::new([SECRET]).apply("refused: rect horse batt (too long)");
        assert_eq!(clean, "refused: *** (too long)");
    }

    #[test]
    fn a_value_in_base64_is_masked_in_plain_text_too() {
        let clean =
            Redaction::new([BASE64_STANDARD.encode(SECRET).as_str()]).apply(&format!("line 1: {SECRET}"));
        assert_eq!(clean, "line 1: ***");
    }

    #[test]
    fn a_text_is_cut_after_it_is_masked() {
        let text = format!("{}{SECRET}{}", "a".repeat(MAX_TEXT - 5), "\u{e9}".repeat(MAX_TEXT));
        let clean = Redaction::new([SECRET]).apply(&text);
        assert!(clean.ends_with("...") && !clean.contains("corre"), "{clean}");
    }

    #[test]
    fn other_text_and_very_short_values_stay() {
        let text = "InvalidParameter: cpu 1 of pod a\u{e9} is invalid";
        assert_eq!(Redaction::new(["1", "", "on"]).apply(text), text);
        assert_eq!(Redaction::new([]).apply("two\nlines"), "two lines");
    }
}
