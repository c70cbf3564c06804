//! Words from below are cut: nobody there may fill up the upper cluster.

/// As long as a kubelet lets the last words of a container be.
pub(super) const MAX_MESSAGE: usize = 4096;
/// Reasons are words for programs.
pub(super) const MAX_REASON: usize = 256;
/// Names of images, and what identifies images and containers.
pub(super) const MAX_NAME: usize = 1024;

/// What is too long ends with this.
const CUT: &str = "...";

/// A text that is no longer than so many bytes, and more than three.
pub(crate) fn truncate(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(most.saturating_sub(CUT.len()));
    format!("{}{CUT}", &text[..kept])
}

/// The same where there may be none. An empty one is none: the API server does not keep it, and what it does not keep would be written
/// again and again.
pub(super) fn truncate_optional(text: Option<&String>, most: usize) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(|text| truncate(text, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_letters() {
        assert_eq!(truncate("short", 5), "short");
        assert_eq!(truncate("longer", 5), "lo...");
        assert_eq!(truncate("éééé", 6), "é...", "half a letter is none");
    }

    #[test]
    fn an_empty_text_is_none() {
        assert_eq!(truncate_optional(None, 5), None);
        assert_eq!(truncate_optional(Some(&String::new()), 5), None);
        assert_eq!(truncate_optional(Some(&"longer".to_owned()), 5).as_deref(), Some("lo..."));
    }
}
