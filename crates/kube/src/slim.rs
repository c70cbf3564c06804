//! Decodes objects without `managedFields`, which are half of what the API server sends. They are skipped while the object is
//! deserialized and so never allocated.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, IntoDeserializer as _, MapAccess, Visitor},
    forward_to_deserialize_any,
};

/// An object decoded without its `managedFields`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slim<K>(pub K);

/// The path of the skipped field.
const MANAGED_FIELDS: &[&str] = &["metadata", "managedFields"];

/// Wraps a deserializer, visitor or seed. `path` is the remaining path to the skipped field.
struct SkipField<T> {
    inner: T,
    path: &'static [&'static str],
}

/// Wraps the members of an object on that path.
struct SkipFieldMap<A> {
    inner: A,
    path: &'static [&'static str],
    /// The key read last is on the path.
    on_path: bool,
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

// === impl Slim ===

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Slim<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(SkipField { inner: deserializer, path: MANAGED_FIELDS }).map(Self)
    }
}

impl<K: Serialize> Serialize for Slim<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<K: Resource> Resource for Slim<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

// === impl SkipField ===

impl<'de, D: Deserializer<'de>> Deserializer<'de> for SkipField<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(SkipField { inner: visitor, path: self.path })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(SkipField { inner: visitor, path: self.path })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for SkipField<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(SkipFieldMap { inner: members, path: self.path, on_path: false })
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(SkipField { inner: deserializer, path: self.path })
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for SkipField<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(SkipField { inner: deserializer, path: self.path })
    }
}

// === impl SkipFieldMap ===

impl<'de, A: MapAccess<'de>> MapAccess<'de> for SkipFieldMap<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(Key(key)) = self.inner.next_key()? {
            self.on_path = self.path.first().is_some_and(|name| *name == key);
            if !self.on_path || self.path.len() > 1 {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            self.inner.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.path {
            [_, rest @ ..] if self.on_path => {
                self.inner.next_value_seed(SkipField { inner: seed, path: rest })
            }
            _ => self.inner.next_value_seed(seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::api::WatchEvent;
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "web",
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:containers": {}}}}],
                "labels": {"managedFields": "a label of that name", "metadata": "and \"one\" of this"},
                "resourceVersion": "7",
            },
            "spec": {"containers": [{"name": "c", "env": [{"name": "metadata", "value": "managedFields"}]}]},
            "status": {"phase": "Running"},
        })
    }

    #[test]
    fn only_the_managed_fields_are_skipped() {
        let text = pod().to_string();
        let Slim(slim): Slim<Pod> = serde_json::from_str(&text).unwrap();
        let mut full: Pod = serde_json::from_str(&text).unwrap();
        assert!(full.metadata.managed_fields.take().is_some(), "the input has managed fields");
        assert_eq!(slim, full);
    }

    #[test]
    fn objects_in_watch_events_are_slim_in_any_order_of_fields() {
        let typed = format!(r#"{{"type":"ADDED","object":{}}}"#, pod());
        let untyped = format!(r#"{{"object":{},"type":"ADDED"}}"#, pod());
        for text in [typed, untyped] {
            let event: WatchEvent<Slim<Pod>> = serde_json::from_str(&text).unwrap();
            let WatchEvent::Added(Slim(pod)) = event else { panic!("{event:?}") };
            assert_eq!((pod.metadata.name.as_deref(), pod.metadata.managed_fields), (Some("web"), None));
        }
    }

    #[test]
    fn unusual_or_invalid_metadata_decodes_as_without_skipping() {
        for (text, readable) in [
            (r#"{"apiVersion":"v1","kind":"Node","metadata":{}}"#, true),
            (r#"{"apiVersion":"v1","kind":"Node","metadata":null}"#, true),
            (r#"{"apiVersion":"v1","kind":"Node"}"#, true),
            (r#"{"apiVersion":"v1","kind":"Pod","metadata":{}}"#, false),
            (r#"{"apiVersion":"v1","kind":"Node","metadata":"none"}"#, false),
            (r#"["Node"]"#, false),
            (r#"{"apiVersion":"v1","kind":"Node","metadata":{"managedFields":[}}"#, false),
        ] {
            let slim = serde_json::from_str::<Slim<Node>>(text);
            let full = serde_json::from_str::<Node>(text);
            assert_eq!(slim.is_ok(), readable, "{text}");
            assert_eq!(slim.ok().map(|Slim(node)| node), full.ok(), "{text}");
        }
    }
}
