//! Durations as people write them: `1.5s`, `200ms`, `2m`, `1h30m`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Reads a duration; the error says what to write instead.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let signed: Option<SignedDuration> = text.trim().parse().ok();
    signed
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| format!("{text:?} is not a duration: write one such as 1.5s, 200ms or 2m"))
}

fn show(duration: Duration) -> String {
    let signed = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    format!("{signed:#}")
}

pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    show(*duration).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// The same for durations that may be absent.
pub(crate) mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "serde hands over the field by reference")]
    pub(crate) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(super::show).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text)).transpose().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them_and_survive_the_wire() {
        for (text, millis) in
            [("1.5s", 1500), ("200ms", 200), ("2m", 120_000), ("1h30m", 5_400_000), ("0", 0)]
        {
            let duration = parse(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(parse(&show(duration)).unwrap(), duration, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_no_duration_is_refused_with_an_example() {
        for text in ["soon", "5", "-3s", ""] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("1.5s"), "{error}");
        }
    }
}
