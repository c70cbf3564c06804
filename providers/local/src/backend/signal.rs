//! Signals by name and number.

use std::str::FromStr;

use nix::sys::signal::Signal;

/// SIGTERM.
pub(super) const TERM: i32 = 15;
/// SIGKILL.
pub(super) const KILL: i32 = 9;
/// The real-time signals, as the C library numbers them.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// Parses a signal as images and pods write it: `SIGQUIT`, `quit`, `3`, `SIGRTMIN+3`.
pub(super) fn parse(text: &str) -> Option<i32> {
    let text = text.trim().to_ascii_uppercase();
    if let Ok(number) = text.parse::<i32>() {
        return (1..=RTMAX).contains(&number).then_some(number);
    }
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    let real_time = if let Some(more) = name.strip_prefix("RTMIN") {
        Some(RTMIN + offset(more, '+')?)
    } else if let Some(less) = name.strip_prefix("RTMAX") {
        Some(RTMAX - offset(less, '-')?)
    } else {
        None
    };
    if let Some(number) = real_time {
        return (RTMIN..=RTMAX).contains(&number).then_some(number);
    }
    Signal::from_str(&format!("SIG{name}")).ok().map(|signal| signal as i32)
}

fn offset(text: &str, sign: char) -> Option<i32> {
    if text.is_empty() { Some(0) } else { text.strip_prefix(sign)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_name_and_number() {
        for (text, expected) in [
            ("SIGTERM", Some(15)),
            ("quit", Some(3)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMAX-1", Some(63)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+99", None),
            ("SIGNONSENSE", None),
            ("0", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
