//! Truncates texts from the lower cluster, so that they cannot fill up the upper one.

/// The limit of kubelets for termination messages.
pub(super) const MAX_MESSAGE: usize = 4096;
/// The limit for reasons.
pub(super) const MAX_REASON: usize = 256;
/// The limit for image names and ids.
pub(super) const MAX_NAME: usize = 1024;

/// The end of truncated texts.
const ELLIPSIS: &str = "...";

/// Limits a text to this number of bytes, which must be more than three.
pub(crate) fn truncate(text: &str, max_length: usize) -> String {
    if text.len() <= max_length {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(max_length.saturating_sub(ELLIPSIS.len()));
    format!("{}{ELLIPSIS}", &text[..kept])
}

/// Limits an optional text. An empty text becomes `None`: the API server does not store it, and it would be written again and again.
pub(super) fn truncate_optional(text: Option<&String>, max_length: usize) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(|text| truncate(text, max_length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_between_characters() {
        assert_eq!(truncate("short", 5), "short");
        assert_eq!(truncate("longer", 5), "lo...");
        assert_eq!(truncate("éééé", 6), "é...", "only whole characters");
    }

    #[test]
    fn an_empty_text_becomes_none() {
        assert_eq!(truncate_optional(None, 5), None);
        assert_eq!(truncate_optional(Some(&String::new()), 5), None);
        assert_eq!(truncate_optional(Some(&"longer".to_owned()), 5).as_deref(), Some("lo..."));
    }
}
