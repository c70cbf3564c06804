//! Values of responses, read tolerantly: numbers as text, text as numbers, and `null`. What cannot be read is absent, and never an error that
//! would hide the rest of the response.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// A text, also one that is written as a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) Option<String>);

/// An integer, also one that is written as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) Option<i64>);

/// A decimal number, also one that is written as text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Decimal(pub(crate) Option<f64>);

/// A truth value, also one that is written as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flag(pub(crate) Option<bool>);

/// An object that may be absent or unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object<T>(pub(crate) Option<T>);

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List<T> {
    /// The items that can be read; `None` if there is no list.
    pub(crate) items: Option<Vec<T>>,
    /// The number of items that cannot be read.
    pub(crate) unreadable: usize,
}

// === impl Text ===

impl Text {
    /// The text, unless it is empty.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.as_deref().filter(|text| !text.is_empty())
    }

    /// A copy of the text, unless it is empty.
    pub(crate) fn owned(&self) -> Option<String> {
        self.get().map(str::to_owned)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(value) => Some(value.to_string()),
            _ => None,
        }))
    }
}

// === impl Number ===

impl Number {
    /// The number as another type, if it fits.
    pub(crate) fn to<T: TryFrom<i64>>(self) -> Option<T> {
        self.0.and_then(|number| T::try_from(number).ok())
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let decimal = match Value::deserialize(deserializer)? {
            Value::Number(number) => match number.as_i64() {
                Some(number) => return Ok(Self(Some(number))),
                None => number.as_f64(),
            },
            Value::String(text) => match text.trim().parse() {
                Ok(number) => return Ok(Self(Some(number))),
                Err(_) => text.trim().parse().ok(),
            },
            _ => None,
        };
        Ok(Self(decimal.filter(|number| number.fract() == 0.0 && number.abs() < 1e15).map(integer)))
    }
}

/// A number without fraction below 2^53 is an integer.
#[expect(clippy::cast_possible_truncation, reason = "the caller has checked the range")]
fn integer(number: f64) -> i64 {
    number as i64
}

// === impl Decimal ===

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        Ok(Self(number.filter(|number: &f64| number.is_finite())))
    }
}

// === impl Flag ===

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::Bool(value) => Some(value),
            Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
            Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        }))
    }
}

// === impl Object ===

impl<T> Object<T> {
    /// The object.
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> Default for Object<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self(if value.is_object() { serde_json::from_value(value).ok() } else { None }))
    }
}

// === impl List ===

impl<T> List<T> {
    /// The items that can be read.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.as_deref().unwrap_or_default().iter()
    }

    /// Whether items may be missing: some cannot be read, or there is no list at all.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.items.is_none() || self.unreadable > 0
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { items: None, unreadable: 0 }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Value::Array(values) = Value::deserialize(deserializer)? else { return Ok(Self::default()) };
        let count = values.len();
        let items: Vec<T> =
            values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect();
        let unreadable = count - items.len();
        Ok(Self { items: Some(items), unreadable })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn numbers_as_text_and_text_as_numbers_are_read() {
        assert_eq!(read::<Number>(json!("137")), Number(Some(137)));
        assert_eq!(read::<Number>(json!(137.0)), Number(Some(137)));
        assert_eq!(read::<Decimal>(json!("2.5")), Decimal(Some(2.5)));
        assert_eq!(read::<Decimal>(json!(2)), Decimal(Some(2.0)));
        assert_eq!(read::<Text>(json!(5)), Text(Some("5".to_owned())));
        assert_eq!(read::<Flag>(json!("True")), Flag(Some(true)));
    }

    #[test]
    fn what_cannot_be_read_is_absent() {
        for nonsense in [json!(null), json!([1]), json!({"a": 1}), json!("many")] {
            assert_eq!(read::<Number>(nonsense.clone()), Number(None), "{nonsense}");
            assert_eq!(read::<Decimal>(nonsense.clone()), Decimal(None), "{nonsense}");
            assert_eq!(read::<Flag>(nonsense), Flag(None));
        }
        assert_eq!(read::<Number>(json!(1.5)), Number(None));
        assert_eq!(read::<Decimal>(json!("inf")), Decimal(None));
        assert_eq!(read::<Text>(json!({})), Text(None));
    }

    #[test]
    fn a_list_says_what_it_lacks() {
        assert!(read::<List<String>>(json!(null)).is_incomplete());
        assert!(!read::<List<String>>(json!([])).is_incomplete());
        let list: List<String> = read(json!(["a", 1, "b"]));
        assert_eq!((list.items, list.unreadable), (Some(vec!["a".to_owned(), "b".to_owned()]), 1));
    }
}
