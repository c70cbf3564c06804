//! Durations as Go writes them: `30s`, `1m`, `1h30m`, `1.5s`.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The units of Go's `time.ParseDuration`, in nanoseconds. Longer names stand before those that begin like them.
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

/// A length of time in Go's notation. Never negative: no setting has a use for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// A text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(String);

// === impl GoDuration ===

impl GoDuration {
    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for GoDuration {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let fail = || ParseError(text.to_owned());
        if text == "0" {
            return Ok(Self::default());
        }
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest.is_empty() {
            return Err(fail());
        }
        let mut total: u128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fail)?;
            let (number, tail) = rest.split_at(end);
            let (name, unit) = UNITS
                .iter()
                .find(|(name, _)| tail.starts_with(name) && !longer(tail, name))
                .ok_or_else(fail)?;
            total = total.checked_add(scaled(number, *unit).ok_or_else(fail)?).ok_or_else(fail)?;
            rest = &tail[name.len()..];
        }
        let seconds = u64::try_from(total / NANOS_PER_SECOND).map_err(|_| fail())?;
        let nanos = u32::try_from(total % NANOS_PER_SECOND).map_err(|_| fail())?;
        Ok(Self(Duration::new(seconds, nanos)))
    }
}

/// Whether a longer unit begins here, as `ms` where `m` matches too.
fn longer(tail: &str, name: &str) -> bool {
    UNITS.iter().any(|(other, _)| other.len() > name.len() && tail.starts_with(other))
}

/// A decimal number times a unit, without going through floating point.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mut total = if whole.is_empty() { 0 } else { whole.parse::<u128>().ok()?.checked_mul(unit)? };
    let mut scale = unit;
    for digit in fraction.bytes() {
        // Beyond nanoseconds there is nothing left to add, as in Go.
        scale /= 10;
        total = total.checked_add(scale * u128::from(digit - b'0'))?;
    }
    Some(total)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let nanos = self.0.subsec_nanos();
        if seconds == 0 && nanos == 0 {
            return f.write_str("0s");
        }
        for (amount, unit) in [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")] {
            if amount > 0 {
                write!(f, "{amount}{unit}")?;
            }
        }
        for (amount, unit) in
            [(nanos / 1_000_000, "ms"), (nanos / 1_000 % 1_000, "us"), (nanos % 1_000, "ns")]
        {
            if amount > 0 {
                write!(f, "{amount}{unit}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a duration: write a number with a unit, such as 30s, 1m or 1h30m", self.0)
    }
}

impl std::error::Error for ParseError {}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A number with a unit, or several: 30s, 1m, 1h30m.",
            "pattern": r"^\+?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$"
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Duration {
        text.parse::<GoDuration>().unwrap().0
    }

    #[test]
    fn the_notation_of_go_is_understood() {
        assert_eq!(parse("0"), Duration::ZERO);
        assert_eq!(parse("30s"), Duration::from_secs(30));
        assert_eq!(parse("1m"), Duration::from_mins(1));
        assert_eq!(parse("1h30m"), Duration::from_mins(90));
        assert_eq!(parse("1.5s"), Duration::from_millis(1500));
        assert_eq!(parse(".5m"), Duration::from_secs(30));
        assert_eq!(parse("100ms"), Duration::from_millis(100));
        assert_eq!(parse("2µs"), Duration::from_micros(2));
        assert_eq!(parse("1m0s"), Duration::from_mins(1));
    }

    #[test]
    fn other_texts_are_refused_with_advice() {
        for text in ["", "30", "s", "1d", "-1s", "1.2.3s", "1h 30m", ".s", "99999999999999999999999h", "1m30"]
        {
            let error = text.parse::<GoDuration>().unwrap_err();
            assert!(error.to_string().contains("such as 30s"), "{text}: {error}");
        }
        assert!(serde_json::from_str::<GoDuration>("30").unwrap_err().to_string().contains("with a unit"));
    }

    #[test]
    fn durations_are_written_as_short_as_can_be() {
        assert_eq!(GoDuration::from_secs(90).to_string(), "1m30s");
        assert_eq!(GoDuration::from_secs(14_400).to_string(), "4h");
        assert_eq!(GoDuration(Duration::from_millis(250)).to_string(), "250ms");
        assert_eq!(GoDuration::default().to_string(), "0s");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(seconds in 0u64..10_000_000, nanos in 0u32..1_000_000_000) {
            let duration = GoDuration(Duration::new(seconds, nanos));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            drop(text.parse::<GoDuration>());
        }
    }
}
