//! Values in the notation of Go, which kubelet messages use.

use std::{path::Path, time::Duration};

pub(crate) use vk_provider::{go_text::io_error, pod::full_name};

/// A duration as Go's `time.Duration` prints it, in whole milliseconds: `0s`, `532ms`, `1.25s`, `1m20s`, `5m0s`.
pub(crate) fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let fraction = match millis % 1000 {
        0 => String::new(),
        rest => format!(".{rest:03}").trim_end_matches('0').to_owned(),
    };
    let seconds = format!("{}{fraction}s", millis / 1000 % 60);
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// A quoted path.
pub(crate) fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn durations_are_printed_as_in_go() {
        for (millis, wanted) in [
            (0, "0s"),
            (532, "532ms"),
            (1000, "1s"),
            (1250, "1.25s"),
            (59_000, "59s"),
            (60_000, "1m0s"),
            (62_500, "1m2.5s"),
            (90_000, "1m30s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), wanted);
        }
    }
}
