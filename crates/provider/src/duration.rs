//! Durations in Go's notation (`time.ParseDuration`): `30s`, `1m`, `1h30m`, `1.5s`.
//!
//! The module works with serde for fields of type [`Duration`]: `#[serde(with = "vk_provider::duration")]`, and
//! `#[serde(with = "vk_provider::duration::option")]` for optional ones. Hand-written, because no crate in the tree
//! accepts exactly what Go accepts.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The units of Go's `time.ParseDuration`, in nanoseconds.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
];

/// The text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration: write a number with a unit, such as 30s, 1.5s or 1h30m")]
pub struct ParseError(String);

/// Displays a duration without units that are zero, as people write it in configurations: `1h30m`.
#[derive(Clone, Copy, Debug)]
pub struct Short(pub Duration);

/// Displays a duration exactly as Go's `Duration.String`, for texts that match those of a kubelet: `1h30m0s`.
#[derive(Clone, Copy, Debug)]
pub struct GoString(pub Duration);

/// Parses a duration. Negative ones are refused: no setting has a use for them.
pub fn parse(text: &str) -> Result<Duration, ParseError> {
    let fail = || ParseError(text.to_owned());
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = trimmed.strip_prefix('+').unwrap_or(trimmed);
    if rest.is_empty() {
        return Err(fail());
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fail)?;
        let (number, tail) = rest.split_at(end);
        // The longest unit that matches: `ms`, not `m`.
        let matching = UNITS.iter().filter(|(name, _)| tail.starts_with(name));
        let (name, unit) = matching.max_by_key(|(name, _)| name.len()).ok_or_else(fail)?;
        total = total.checked_add(scaled(number, *unit).ok_or_else(fail)?).ok_or_else(fail)?;
        rest = &tail[name.len()..];
    }
    let seconds = u64::try_from(total / NANOS_PER_SECOND).map_err(|_| fail())?;
    let nanos = u32::try_from(total % NANOS_PER_SECOND).map_err(|_| fail())?;
    Ok(Duration::new(seconds, nanos))
}

/// A decimal number times a unit, without floating point.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mut total = if whole.is_empty() { 0 } else { whole.parse::<u128>().ok()?.checked_mul(unit)? };
    let mut scale = unit;
    for digit in fraction.bytes() {
        // Digits below a nanosecond are dropped, as in Go.
        scale /= 10;
        total = total.checked_add(scale * u128::from(digit - b'0'))?;
    }
    Some(total)
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), u64::from(self.0.subsec_nanos()));
        let parts = [
            (seconds / 3600, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
            (nanos / 1_000_000, "ms"),
            (nanos / 1_000 % 1_000, "us"),
            (nanos % 1_000, "ns"),
        ];
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        parts
            .iter()
            .filter(|(amount, _)| *amount > 0)
            .try_for_each(|(amount, unit)| write!(f, "{amount}{unit}"))
    }
}

impl fmt::Display for GoString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if seconds == 0 && nanos > 0 {
            return match nanos {
                1_000_000.. => decimal(f, nanos / 1_000_000, &format!("{:06}", nanos % 1_000_000), "ms"),
                1_000.. => decimal(f, nanos / 1_000, &format!("{:03}", nanos % 1_000), "µs"),
                _ => decimal(f, nanos, "", "ns"),
            };
        }
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        decimal(f, seconds % 60, &format!("{nanos:09}"), "s")
    }
}

fn decimal(f: &mut fmt::Formatter<'_>, whole: impl fmt::Display, fraction: &str, unit: &str) -> fmt::Result {
    match fraction.trim_end_matches('0') {
        "" => write!(f, "{whole}{unit}"),
        fraction => write!(f, "{whole}.{fraction}{unit}"),
    }
}

/// Serialises a duration in Go's notation.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Short(*duration))
}

/// Deserialises a duration from Go's notation.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// The same for optional durations.
pub mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    /// Serialises an optional duration in Go's notation.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|duration| super::Short(duration).to_string()).serialize(serializer)
    }

    /// Deserialises an optional duration from Go's notation.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text)).transpose().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_notation_of_go_is_parsed() {
        for (text, millis) in [
            ("0", 0),
            ("30s", 30_000),
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1500),
            (".5m", 30_000),
            ("100ms", 100),
            ("2000µs", 2),
            ("1m0s", 60_000),
            (" 2m ", 120_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_an_example() {
        for text in
            ["", "30", "s", "1d", "-1s", "1.2.3s", "1h 30m", ".s", "99999999999999999999999h", "1m30", "soon"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains("such as 30s"), "{text}: {error}");
        }
    }

    #[test]
    fn durations_are_displayed_without_units_that_are_zero() {
        for (millis, text) in [(90_000, "1m30s"), (14_400_000, "4h"), (250, "250ms"), (0, "0s")] {
            assert_eq!(Short(Duration::from_millis(millis)).to_string(), text);
        }
    }

    #[test]
    fn a_go_string_equals_that_of_go() {
        for (micros, text) in [
            (0, "0s"),
            (1_500, "1.5ms"),
            (250_000, "250ms"),
            (1_000_000, "1s"),
            (61_500_000, "1m1.5s"),
            (3_600_000_000, "1h0m0s"),
            (7, "7µs"),
        ] {
            assert_eq!(GoString(Duration::from_micros(micros)).to_string(), text);
        }
        assert_eq!(GoString(Duration::from_nanos(5)).to_string(), "5ns");
    }

    proptest! {
        #[test]
        fn a_displayed_duration_is_parsed_back(seconds in 0_u64..10_000_000, nanos in 0_u32..1_000_000_000) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse(&Short(duration).to_string()).unwrap(), duration);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            drop(parse(&text));
        }
    }
}
