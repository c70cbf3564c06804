//! Other names for keys of a configuration: environment variables, and keys of the TOML files of Go providers.

use serde_json::{Map, Value};

/// Another name for a key of a provider's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigAlias {
    /// The name: of an environment variable, or of a key in a TOML file.
    pub name: &'static str,
    /// The key that it sets, with dots between the levels: `capacity.cpu`. Not used with [`AliasKind::Ignored`].
    pub key: &'static str,
    /// The form of the value.
    pub kind: AliasKind,
}

/// The form of a value that has an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AliasKind {
    /// Text. A number is taken as it is written.
    Text,
    /// An integer.
    Number,
    /// `true` or `false`.
    Switch,
    /// Texts, separated by commas if they come from the environment.
    List,
    /// The name is accepted, and has no effect.
    Ignored,
}

// === impl ConfigAlias ===

impl ConfigAlias {
    /// An alias for a key with text.
    pub const fn text(name: &'static str, key: &'static str) -> Self {
        Self { name, key, kind: AliasKind::Text }
    }

    /// An alias for a key with a list of texts.
    pub const fn list(name: &'static str, key: &'static str) -> Self {
        Self { name, key, kind: AliasKind::List }
    }

    /// A name that is accepted and has no effect.
    pub const fn ignored(name: &'static str) -> Self {
        Self { name, key: "", kind: AliasKind::Ignored }
    }

    /// The value of the key, from text such as that of an environment variable; `None` if the alias has no effect. The error says what the
    /// text should be, without repeating it: it may be secret.
    pub fn parse(&self, text: &str) -> Result<Option<Value>, String> {
        let text = text.trim();
        let value = match self.kind {
            AliasKind::Text => text.into(),
            AliasKind::Number => text.parse::<i64>().map_err(|_| "must be an integer".to_owned())?.into(),
            AliasKind::Switch => match text.to_ascii_lowercase().as_str() {
                "true" | "1" => true.into(),
                "false" | "0" => false.into(),
                _ => return Err("must be true or false".to_owned()),
            },
            AliasKind::List => {
                text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect()
            }
            AliasKind::Ignored => return Ok(None),
        };
        Ok(Some(value))
    }

    /// The value of the key, from a value of a file. The error says what the value should be.
    pub(super) fn convert(&self, value: &Value) -> Result<Option<Value>, String> {
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let wrong = |form: &str| Err(format!("must be {form}"));
        let converted = match (self.kind, value) {
            (AliasKind::Ignored, _) => return Ok(None),
            (AliasKind::Text, value) => match text(value) {
                Some(text) => text.into(),
                None => return wrong("text in quotes"),
            },
            (AliasKind::Number, Value::Number(number)) if number.is_i64() => value.clone(),
            (AliasKind::Number, _) => return wrong("an integer"),
            (AliasKind::Switch, Value::Bool(_)) => value.clone(),
            (AliasKind::Switch, _) => return wrong("true or false"),
            (AliasKind::List, Value::Array(items)) => {
                let texts: Option<Vec<Value>> =
                    items.iter().map(|item| text(item).map(Value::from)).collect();
                match texts {
                    Some(texts) => texts.into(),
                    None => return wrong("a list of texts in quotes"),
                }
            }
            // The Go providers have one value where ours have a list.
            (AliasKind::List, Value::String(text)) => return self.parse(text),
            (AliasKind::List, _) => return wrong("a list of texts in quotes"),
        };
        Ok(Some(converted))
    }

    /// Sets the key, in a section of its own if it has several levels. A value that is in the way is replaced.
    pub fn set(&self, section: &mut Map<String, Value>, value: Value) {
        set_path(section, self.key, value);
    }
}

fn set_path(section: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((first, rest)) = path.split_once('.') else {
        section.insert(path.to_owned(), value);
        return;
    };
    let inner = section.entry(first).or_insert_with(|| Value::Object(Map::new()));
    if !inner.is_object() {
        *inner = Value::Object(Map::new());
    }
    if let Value::Object(inner) = inner {
        set_path(inner, rest, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_becomes_a_value_of_the_kind_of_the_key() {
        let of = |kind: AliasKind, text: &str| ConfigAlias { name: "A", key: "a", kind }.parse(text);
        assert_eq!(of(AliasKind::Text, " 1000 "), Ok(Some(json!("1000"))));
        assert_eq!(of(AliasKind::Number, "10"), Ok(Some(json!(10))));
        assert_eq!(of(AliasKind::Switch, "TRUE"), Ok(Some(json!(true))));
        assert_eq!(of(AliasKind::List, "vsw-a, vsw-b,"), Ok(Some(json!(["vsw-a", "vsw-b"]))));
        assert_eq!(of(AliasKind::Ignored, "x"), Ok(None));
        for kind in [AliasKind::Number, AliasKind::Switch] {
            let why = of(kind, "hidden").unwrap_err();
            assert!(why.starts_with("must be ") && !why.contains("hidden"), "{why}");
        }
    }

    #[test]
    fn keys_with_dots_are_set_in_sections() {
        let mut section = Map::new();
        ConfigAlias::text("A", "capacity.cpu").set(&mut section, json!("1"));
        ConfigAlias::text("B", "capacity.memory").set(&mut section, json!("2Gi"));
        ConfigAlias::text("C", "region").set(&mut section, json!("r"));
        assert_eq!(Value::Object(section), json!({"capacity": {"cpu": "1", "memory": "2Gi"}, "region": "r"}));
        let mut wrong = Map::from_iter([("capacity".to_owned(), json!("much"))]);
        ConfigAlias::text("A", "capacity.cpu").set(&mut wrong, json!("1"));
        assert_eq!(Value::Object(wrong), json!({"capacity": {"cpu": "1"}}));
    }
}
