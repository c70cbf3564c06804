//! Words from below are cut: nobody there may fill up the upper cluster.

/// As long as a kubelet lets the last words of a container be.
pub(super) const LONGEST_MESSAGE: usize = 4096;
/// Reasons are words for programs.
pub(super) const LONGEST_REASON: usize = 256;
/// Names of images, and what identifies images and containers.
pub(super) const LONGEST_NAME: usize = 1024;

/// What is too long ends with this.
const CUT: &str = "...";

/// A text that is no longer than so many bytes, and more than three.
pub(crate) fn capped(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(most.saturating_sub(CUT.len()));
    format!("{}{CUT}", &text[..kept])
}

/// The same where there may be none. An empty one is none: the API server does not keep it, and what it does not keep would be written
/// again and again.
pub(super) fn optional(text: Option<&String>, most: usize) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(|text| capped(text, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_letters() {
        assert_eq!(capped("short", 5), "short");
        assert_eq!(capped("longer", 5), "lo...");
        assert_eq!(capped("éééé", 6), "é...", "half a letter is none");
    }
}
