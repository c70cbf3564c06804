//! Non-negative quantities in the configuration, with or without quotes: `250m`, `2`, `64Mi`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;
use vk_provider::Quantity;

/// Parses a non-negative quantity; the error says what to write instead.
pub(crate) fn parse(text: &str) -> Result<Quantity, String> {
    let amount: Quantity = text.trim().parse().map_err(|_| {
        format!("{text:?} is not a quantity: write a number with an optional suffix, such as 250m, 2 or 64Mi")
    })?;
    if amount.is_negative() {
        return Err(format!("{text:?} is negative: write zero or more"));
    }
    Ok(amount)
}

#[expect(clippy::ref_option, reason = "serde passes the field by reference")]
pub(crate) fn serialize<S: Serializer>(amount: &Option<Quantity>, serializer: S) -> Result<S::Ok, S::Error> {
    amount.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    let text = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(None),
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        other => return Err(D::Error::custom(format!("{other} is not a quantity"))),
    };
    parse(&text).map(Some).map_err(D::Error::custom)
}
