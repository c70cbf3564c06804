//! Digests of values, for comparison only. There are several per pod, and the values themselves would be the larger half of a
//! pod's memory. They are taken often, so a value is serialized into the hasher and never written out.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use serde::{
    Serialize, Serializer,
    ser::{
        SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};
use serde_json::Error;

/// The digest of a value. Null and objects without members count as absent: the API server writes out some of them
/// (`lastState: {}`) and not the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueDigest(Option<u64>);

/// The digest of a part of a value; `None` counts as absent.
type Said = Result<Option<u64>, Error>;

struct Reading;

/// A list: absent items keep their position.
struct Items(DefaultHasher);

/// An object.
struct Members {
    said: DefaultHasher,
    any: bool,
    key: Option<u64>,
}

// === impl ValueDigest ===

impl ValueDigest {
    /// The digest of this value.
    pub(crate) fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        // Kubernetes types can always be serialized.
        Self(value.serialize(Reading).unwrap_or_default())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what a serializer answers")]
fn hash(kind: u8, value: impl Hash) -> Said {
    let mut hasher = DefaultHasher::new();
    (kind, value).hash(&mut hasher);
    Ok(Some(hasher.finish()))
}

fn items() -> Items {
    let mut said = DefaultHasher::new();
    said.write_u8(b'[');
    Items(said)
}

fn members() -> Members {
    let mut said = DefaultHasher::new();
    said.write_u8(b'{');
    Members { said, any: false, key: None }
}

// === impl Items ===

impl Items {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(Reading)?.hash(&mut self.0);
        Ok(())
    }
}

// === impl Members ===

impl Members {
    fn member<T: Serialize + ?Sized>(&mut self, key: impl Hash, value: &T) -> Result<(), Error> {
        if let Some(said) = value.serialize(Reading)? {
            (key, said).hash(&mut self.said);
            self.any = true;
        }
        Ok(())
    }

    fn said(&self) -> Option<u64> {
        self.any.then(|| self.said.finish())
    }
}

// === the required methods of a serializer ===

macro_rules! scalars {
    ($($name:ident: $type:ty => $kind:literal),* $(,)?) => {
        $(fn $name(self, value: $type) -> Said {
            hash($kind, value)
        })*
    };
}

impl Serializer for Reading {
    type Ok = Option<u64>;
    type Error = Error;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Members;
    type SerializeStruct = Members;
    type SerializeStructVariant = Members;

    scalars! {
        serialize_bool: bool => b'b',
        serialize_i8: i8 => b'i',
        serialize_i16: i16 => b'i',
        serialize_i32: i32 => b'i',
        serialize_i64: i64 => b'i',
        serialize_u8: u8 => b'i',
        serialize_u16: u16 => b'i',
        serialize_u32: u32 => b'i',
        serialize_u64: u64 => b'i',
        serialize_char: char => b'c',
        serialize_str: &str => b's',
        serialize_bytes: &[u8] => b'y',
    }

    fn serialize_f32(self, value: f32) -> Said {
        hash(b'f', value.to_bits())
    }

    fn serialize_f64(self, value: f64) -> Said {
        hash(b'f', value.to_bits())
    }

    fn serialize_none(self) -> Said {
        Ok(None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Said {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Said {
        Ok(None)
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Said {
        Ok(None)
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Said {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Said {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Said {
        let mut members = members();
        members.member(variant, value)?;
        Ok(members.said())
    }

    fn serialize_seq(self, _length: Option<usize>) -> Result<Items, Error> {
        Ok(items())
    }

    fn serialize_tuple(self, _length: usize) -> Result<Items, Error> {
        Ok(items())
    }

    fn serialize_tuple_struct(self, _name: &'static str, _length: usize) -> Result<Items, Error> {
        Ok(items())
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Items, Error> {
        let mut items = items();
        items.item(variant)?;
        Ok(items)
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Members, Error> {
        Ok(members())
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Members, Error> {
        Ok(members())
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Members, Error> {
        let mut members = members();
        members.member("", variant)?;
        Ok(members)
    }
}

macro_rules! lists {
    ($($kind:ident: $method:ident),* $(,)?) => {
        $(impl $kind for Items {
            type Ok = Option<u64>;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.item(value)
            }

            fn end(self) -> Said {
                Ok(Some(self.0.finish()))
            }
        })*
    };
}

lists! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

impl SerializeMap for Members {
    type Ok = Option<u64>;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = key.serialize(Reading)?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take();
        self.member(key, value)
    }

    fn end(self) -> Said {
        Ok(self.said())
    }
}

macro_rules! objects {
    ($($kind:ident),* $(,)?) => {
        $(impl $kind for Members {
            type Ok = Option<u64>;
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
                self.member(key, value)
            }

            fn end(self) -> Said {
                Ok(self.said())
            }
        })*
    };
}

objects!(SerializeStruct, SerializeStructVariant);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    /// Removes what counts as absent.
    fn prune(value: Value) -> Value {
        match value {
            Value::Object(members) => {
                let members = members.into_iter().map(|(key, value)| (key, prune(value)));
                let says = |value: &Value| {
                    !value.is_null() && value.as_object().is_none_or(|inner| !inner.is_empty())
                };
                Value::Object(members.filter(|(_, value)| says(value)).collect())
            }
            Value::Array(items) => items
                .into_iter()
                .map(prune)
                .map(|item| if item == json!({}) { Value::Null } else { item })
                .collect(),
            other => other,
        }
    }

    proptest! {
        #[test]
        fn two_digests_are_equal_when_their_values_say_the_same(one in any_value(), other in any_value()) {
            let whole = |value: &Value| prune(json!({"value": value}));
            prop_assert_eq!(ValueDigest::of(&one) == ValueDigest::of(&other), whole(&one) == whole(&other));
            prop_assert_eq!(ValueDigest::of(&one), ValueDigest::of(&prune(one.clone())));
        }
    }

    #[test]
    fn what_says_nothing_is_not_there_but_keeps_its_place_in_a_list() {
        assert_eq!(ValueDigest::of(&json!({"a": 1, "b": {"c": null}})), ValueDigest::of(&json!({"a": 1})));
        assert_ne!(ValueDigest::of(&json!([null, 1])), ValueDigest::of(&json!([1, null])));
        assert_ne!(ValueDigest::of(&json!({"a": []})), ValueDigest::of(&json!({})));
        assert_ne!(ValueDigest::of(&json!({"a": "1"})), ValueDigest::of(&json!({"a": 1})));
    }
}
