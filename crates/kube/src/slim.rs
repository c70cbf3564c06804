//! Decodes objects without fields that nobody needs. They are skipped while the object is deserialized and so never allocated.
//!
//! [`Slim`] leaves out `managedFields`, which are half of what the API server sends. [`Partial`] leaves out what its user says.

use std::{borrow::Cow, cell::Cell, fmt::Debug};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, IntoDeserializer as _, MapAccess, SeqAccess, Visitor},
    forward_to_deserialize_any,
};

/// An object decoded without its `managedFields`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slim<K>(pub K);

/// An object decoded by the rule `R`.
#[derive(Clone, Debug)]
pub struct Partial<R: DecodeRule>(pub R::Object);

/// What of an object is decoded.
pub trait DecodeRule: Clone + Debug + Send + Sync + 'static {
    /// The kind.
    type Object: Resource<DynamicType = ()>;
    /// The fields that are left out.
    const SKIPPED: &'static [Field];
    /// How many elements of lists and members of objects each field of a field of the object may have, such as `spec.volumes`. More are
    /// left out: an empty one takes two bytes of JSON, and in memory the size of all the fields that it may have.
    const MAX_ELEMENTS: usize;

    /// Handles a decoded object, before the next one of a list is decoded. Something was left out because there was too much of it if
    /// `is_cut`.
    fn finish(object: &mut Self::Object, is_cut: bool);
}

/// A field to leave out, or one with such fields. Of a list, those of its elements.
#[derive(Debug)]
pub struct Field {
    name: &'static str,
    /// Empty if the field is left out.
    fields: &'static [Self],
}

/// The fields that [`Slim`] leaves out.
const MANAGED_FIELDS: &[Field] = &[Field::with("metadata", &[Field::skipped("managedFields")])];

/// The depth of the fields of an object's fields, such as `spec.volumes`.
const FIELD_OF_FIELD: usize = 2;

/// Wraps a deserializer, visitor, seed, list or object.
struct Skip<'a, T> {
    inner: T,
    /// The fields to leave out here.
    fields: &'static [Field],
    budget: Option<Budget<'a>>,
}

/// Limits the elements and members that are decoded.
#[derive(Clone, Copy)]
struct Budget<'a> {
    max: usize,
    left: &'a Cell<usize>,
    is_cut: &'a Cell<bool>,
    depth: usize,
}

/// The members of an object.
struct SkipMembers<'a, A> {
    members: Skip<'a, A>,
    /// The fields to leave out of the member whose key was read last.
    fields_of_member: &'static [Field],
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

// === impl Field ===

impl Field {
    /// A field that is left out.
    pub const fn skipped(name: &'static str) -> Self {
        Self { name, fields: &[] }
    }

    /// A field of which these fields are left out.
    pub const fn with(name: &'static str, fields: &'static [Self]) -> Self {
        Self { name, fields }
    }
}

// === impl Slim and Partial ===

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Slim<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(Skip { inner: deserializer, fields: MANAGED_FIELDS, budget: None }).map(Self)
    }
}

impl<'de, R: DecodeRule> Deserialize<'de> for Partial<R>
where
    R::Object: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (left, is_cut) = (Cell::new(R::MAX_ELEMENTS), Cell::new(false));
        let budget = Budget { max: R::MAX_ELEMENTS, left: &left, is_cut: &is_cut, depth: 0 };
        let inner = Skip { inner: deserializer, fields: R::SKIPPED, budget: Some(budget) };
        let mut object = R::Object::deserialize(inner)?;
        R::finish(&mut object, is_cut.get());
        Ok(Self(object))
    }
}

impl<K: Serialize> Serialize for Slim<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<R: DecodeRule> Serialize for Partial<R>
where
    R::Object: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Implements `Resource` for a wrapper of an object.
macro_rules! resource_of_inner {
    ($wrapper:ty, $inner:ty, $($parameter:tt)*) => {
        impl<$($parameter)*> Resource for $wrapper {
            type DynamicType = <$inner as Resource>::DynamicType;
            type Scope = <$inner as Resource>::Scope;

            fn kind(kind: &Self::DynamicType) -> Cow<'_, str> {
                <$inner>::kind(kind)
            }

            fn group(kind: &Self::DynamicType) -> Cow<'_, str> {
                <$inner>::group(kind)
            }

            fn version(kind: &Self::DynamicType) -> Cow<'_, str> {
                <$inner>::version(kind)
            }

            fn plural(kind: &Self::DynamicType) -> Cow<'_, str> {
                <$inner>::plural(kind)
            }

            fn meta(&self) -> &ObjectMeta {
                self.0.meta()
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                self.0.meta_mut()
            }
        }
    };
}

resource_of_inner!(Slim<K>, K, K: Resource);
resource_of_inner!(Partial<R>, R::Object, R: DecodeRule);

// === impl Skip ===

impl<'a, T> Skip<'a, T> {
    fn wrap<U>(&self, inner: U) -> Skip<'a, U> {
        Skip { inner, fields: self.fields, budget: self.budget }
    }

    /// Counts an element or member. Returns whether it may be decoded.
    fn count(&self) -> bool {
        let Some(budget) = self.budget.filter(|budget| budget.depth >= FIELD_OF_FIELD) else { return true };
        let rest = budget.left.get().checked_sub(1);
        budget.left.set(rest.unwrap_or_default());
        rest.is_some()
    }

    /// An element or member was left out.
    fn cut(&self) {
        self.budget.iter().for_each(|budget| budget.is_cut.set(true));
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Skip<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = self.wrap(visitor);
        self.inner.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = self.wrap(visitor);
        self.inner.deserialize_option(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = self.wrap(visitor);
        self.inner.deserialize_newtype_struct(name, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        enum identifier ignored_any
    }
}

/// Passes scalars on.
macro_rules! visit_scalars {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Skip<'_, V> {
    type Value = V::Value;

    visit_scalars! {
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str, visit_borrowed_str: &'de str, visit_string: String
    }

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        let members = self.wrap(members);
        self.inner.visit_map(SkipMembers { members, fields_of_member: &[] })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        let elements = self.wrap(elements);
        self.inner.visit_seq(elements)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.visit_some(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.visit_newtype_struct(deserializer)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Skip<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.deserialize(deserializer)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Skip<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        if self.count() {
            let seed = self.wrap(seed);
            return self.inner.next_element_seed(seed);
        }
        // What is left has to be read, but not kept.
        while self.inner.next_element::<IgnoredAny>()?.is_some() {
            self.cut();
        }
        Ok(None)
    }
}

// === impl SkipMembers ===

impl<'de, A: MapAccess<'de>> MapAccess<'de> for SkipMembers<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        if !self.members.count() {
            while self.members.inner.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                self.members.cut();
            }
            return Ok(None);
        }
        if self.members.fields.is_empty() {
            return self.members.inner.next_key_seed(seed);
        }
        while let Some(Key(key)) = self.members.inner.next_key()? {
            let field = self.members.fields.iter().find(|field| field.name == key);
            if field.is_none_or(|field| !field.fields.is_empty()) {
                self.fields_of_member = field.map_or(&[], |field| field.fields);
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            self.members.inner.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let Skip { inner, budget, .. } = &mut self.members;
        if self.fields_of_member.is_empty() && budget.is_none() {
            return inner.next_value_seed(seed);
        }
        let budget = budget.map(Budget::of_member);
        inner.next_value_seed(Skip { inner: seed, fields: self.fields_of_member, budget })
    }
}

// === impl Budget ===

impl Budget<'_> {
    /// That of a member. Each field of a field has one of its own, so that large ones keep none from being decoded.
    fn of_member(self) -> Self {
        let depth = self.depth + 1;
        if depth == FIELD_OF_FIELD {
            self.left.set(self.max);
        }
        Self { depth, ..self }
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

    /// Pods without environments, with few volumes.
    #[derive(Clone, Debug)]
    struct Rule;

    impl DecodeRule for Rule {
        type Object = Pod;
        const SKIPPED: &'static [Field] =
            &[Field::with("spec", &[Field::with("containers", &[Field::skipped("env")])])];
        const MAX_ELEMENTS: usize = 100;

        fn finish(pod: &mut Pod, is_cut: bool) {
            pod.metadata.generation = is_cut.then_some(1);
        }
    }

    fn partial(pod: &Value) -> Pod {
        let typed = format!(r#"{{"type":"ADDED","object":{pod}}}"#);
        let untyped = format!(r#"{{"object":{pod},"type":"ADDED"}}"#);
        let [first, second] = [typed, untyped].map(|text| {
            let event: WatchEvent<Partial<Rule>> = serde_json::from_str(&text).unwrap();
            let WatchEvent::Added(Partial(pod)) = event else { panic!("{event:?}") };
            pod
        });
        assert_eq!(first, second);
        first
    }

    #[test]
    fn skipped_fields_of_the_elements_of_a_list_are_not_decoded() {
        let mut pod = pod();
        pod["spec"]["containers"][0]["env"] = json!(vec![json!({"name": "a"}); 200_000]);
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}]);
        pod["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"port": "http"}});
        let partial = partial(&pod);
        pod["spec"]["containers"][0].as_object_mut().unwrap().remove("env");
        let full: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(partial, full, "all else is, and nothing was cut");
    }

    #[test]
    fn a_field_with_too_many_elements_is_cut_and_the_others_are_not() {
        let mut pod = pod();
        pod["spec"]["volumes"] = (0..1000).map(|_| json!({"name": "a"})).collect();
        pod["spec"]["nodeSelector"] = (0..1000).map(|n| (n.to_string(), json!("x"))).collect();
        pod["spec"]["nodeName"] = json!("vk");
        pod["spec"]["tolerations"] = json!([{"key": "a"}]);
        let pod = partial(&pod);
        assert_eq!(pod.metadata.generation, Some(1), "it is known");
        let spec = pod.spec.unwrap();
        assert!((30..=100).contains(&spec.volumes.unwrap().len()));
        assert!((50..=100).contains(&spec.node_selector.unwrap().len()));
        assert_eq!((spec.node_name.as_deref(), spec.tolerations.unwrap().len()), (Some("vk"), 1));
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
