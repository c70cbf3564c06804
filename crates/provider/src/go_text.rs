//! Texts as the kubelet and other Go programs print them: people search for them, and tools match them.

use std::io;

/// An I/O error as Go prints it: the system's text in lower case, without "(os error N)".
pub fn io_error(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_are_printed_like_gos() {
        assert_eq!(io_error(&io::Error::from_raw_os_error(2)), "no such file or directory");
        assert_eq!(io_error(&io::Error::from_raw_os_error(1)), "operation not permitted");
        assert_eq!(io_error(&io::Error::other("Custom text")), "custom text");
    }
}
