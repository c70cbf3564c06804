//! The fields of the API types, read from their implementation of `Deserialize`: a new version of the types has its fields here at once.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::OnceLock,
};

use k8s_openapi::api::core::v1::PodSpec;
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor, value::Error},
    forward_to_deserialize_any,
};

/// The types all of whose fields need a row.
pub const COVERED_TYPES: [&str; 9] = [
    "PodSpec",
    "PodSecurityContext",
    "Container",
    "SecurityContext",
    "Probe",
    "Lifecycle",
    "LifecycleHandler",
    "Volume",
    "VolumeMount",
];

/// The type of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A text, or something that is written as one: the name of its type, or empty.
    Text(&'static str),
    /// A whole number.
    Number,
    /// A number or a text.
    NumberOrText,
    /// A boolean.
    Bool,
    /// An object of an API type.
    Object(&'static str),
    /// A list.
    List(Box<Self>),
    /// A map with texts as keys.
    Map(Box<Self>),
}

/// The fields of the API types that a pod's spec consists of.
#[derive(Debug)]
pub struct ApiFields {
    types: BTreeMap<&'static str, Vec<(&'static str, Shape)>>,
}

/// The fields of the API types that a pod's spec consists of.
pub fn api_fields() -> &'static ApiFields {
    static FIELDS: OnceLock<ApiFields> = OnceLock::new();
    FIELDS.get_or_init(|| {
        let types = RefCell::default();
        let shape = RefCell::new(Shape::Bool);
        // Every field gets a value of its type. A type of the API that does not accept it would be left out, so a test counts them.
        let _ = PodSpec::deserialize(Tracer { types: &types, shape: &shape });
        ApiFields { types: types.into_inner() }
    })
}

// === impl ApiFields ===

impl ApiFields {
    /// The fields of a type, in alphabetical order.
    pub fn of(&self, api_type: &str) -> &[(&'static str, Shape)] {
        self.types.get(api_type).map_or(&[], Vec::as_slice)
    }

    /// All fields that need a row, as `Type.field`.
    pub fn covered(&self) -> impl Iterator<Item = String> {
        COVERED_TYPES.iter().flat_map(|api_type| {
            self.of(api_type).iter().map(move |(field, _)| format!("{api_type}.{field}"))
        })
    }

    /// The type of the field of a row: `Type.field`, `Type.field.field`, ...
    pub fn shape(&self, row: &str) -> Option<&Shape> {
        let mut segments = row.split('.');
        let mut api_type = segments.next()?;
        let mut found = None;
        for segment in segments {
            if let Some(shape) = found {
                api_type = object_type(shape)?;
            }
            found = Some(&self.of(api_type).iter().find(|(field, _)| *field == segment)?.1);
        }
        found
    }
}

/// The API type of an object, or of the objects in a list.
pub fn object_type(shape: &Shape) -> Option<&'static str> {
    match shape {
        Shape::Object(api_type) => Some(api_type),
        Shape::List(of) => object_type(of),
        _ => None,
    }
}

/// Gives each field a value, and records what it asked for.
#[derive(Clone, Copy)]
struct Tracer<'a> {
    types: &'a RefCell<BTreeMap<&'static str, Vec<(&'static str, Shape)>>>,
    /// What the last value asked for.
    shape: &'a RefCell<Shape>,
}

impl Tracer<'_> {
    fn record(&self, shape: Shape) {
        *self.shape.borrow_mut() = shape;
    }

    /// The type of a value that was just traced.
    fn traced(&self) -> Shape {
        self.shape.borrow().clone()
    }
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let is_new = !self.types.borrow().contains_key(name);
        let fields = if is_new { fields } else { &[] };
        if is_new {
            self.types.borrow_mut().insert(name, Vec::new());
        }
        let value = visitor.visit_map(TracedFields {
            tracer: self,
            api_type: name,
            fields: fields.iter(),
            field: "",
        });
        self.record(Shape::Object(name));
        value
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let text = if name.contains("Time") { "2030-01-01T00:00:00Z" } else { "1" };
        self.record(Shape::Text(name));
        visitor.visit_newtype_struct(IntoDeserializer::<Error>::into_deserializer(text))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_seq(TracedItem { tracer: self, is_done: Cell::new(false) });
        self.record(Shape::List(Box::new(self.traced())));
        value
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_map(TracedItem { tracer: self, is_done: Cell::new(false) });
        self.record(Shape::Map(Box::new(self.traced())));
        value
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(Shape::Bool);
        visitor.visit_bool(true)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(Shape::Number);
        visitor.visit_i32(1)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(Shape::Number);
        visitor.visit_i64(1)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(Shape::Text(""));
        visitor.visit_str("a")
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    /// Only `IntOrString` asks for anything.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.record(Shape::NumberOrText);
        visitor.visit_i64(1)
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

/// The fields of an object, one after the other.
struct TracedFields<'a> {
    tracer: Tracer<'a>,
    api_type: &'static str,
    fields: std::slice::Iter<'static, &'static str>,
    field: &'static str,
}

impl<'de> MapAccess<'de> for TracedFields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(field) = self.fields.next() else { return Ok(None) };
        self.field = field;
        seed.deserialize(IntoDeserializer::<Error>::into_deserializer(*field)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = seed.deserialize(self.tracer)?;
        let traced = (self.field, self.tracer.traced());
        self.tracer.types.borrow_mut().entry(self.api_type).or_default().push(traced);
        Ok(value)
    }
}

/// The only item of a list or a map.
struct TracedItem<'a> {
    tracer: Tracer<'a>,
    is_done: Cell<bool>,
}

impl<'de> SeqAccess<'de> for TracedItem<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.is_done.replace(true) { Ok(None) } else { seed.deserialize(self.tracer).map(Some) }
    }
}

impl<'de> MapAccess<'de> for TracedItem<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if self.is_done.replace(true) { Ok(None) } else { seed.deserialize(self.tracer).map(Some) }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.tracer)
    }
}
