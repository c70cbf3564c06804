//! The parameters of each call, as the vendor's models have them. `dev/vendor-sdks/parameters.py eci` writes the table.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};

const TABLE: &str = include_str!("schema/parameters.txt");

/// Parameters that belong to the signature or to the protocol.
const COMMON: [&str; 11] = [
    "AccessKeyId",
    "Action",
    "Format",
    "SecurityToken",
    "Signature",
    "SignatureMethod",
    "SignatureNonce",
    "SignatureType",
    "SignatureVersion",
    "Timestamp",
    "Version",
];
/// More items than any list may have.
const MAX_INDEX: usize = 1000;

static CALLS: LazyLock<BTreeMap<&'static str, Field>> = LazyLock::new(parse);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Text,
    Integer,
    Number,
    Boolean,
}

#[derive(Debug, Default)]
enum Shape {
    #[default]
    Unset,
    Leaf(Type),
    Object(BTreeMap<&'static str, Field>),
    List(Box<Field>),
}

#[derive(Debug, Default)]
struct Field {
    shape: Shape,
    is_required: bool,
}

/// Whether there is such a call.
pub(crate) fn has_call(action: &str) -> bool {
    CALLS.contains_key(action)
}

/// All calls.
#[cfg(test)]
pub(crate) fn calls() -> impl Iterator<Item = &'static str> {
    CALLS.keys().copied()
}

/// The parameters of a call as a tree with types. What is unknown, missing or of another type is refused.
pub(crate) fn read<'a>(
    action: &str,
    parameters: impl Iterator<Item = &'a (String, String)>,
) -> Result<Value> {
    let call = &CALLS[action];
    let mut tree = Value::Null;
    for (path, value) in parameters {
        if !COMMON.contains(&path.as_str()) {
            insert(call, &mut tree, path, path, value)?;
        }
    }
    check(call, &tree, "")?;
    Ok(if tree.is_null() { Value::Object(Map::new()) } else { tree })
}

fn parse() -> BTreeMap<&'static str, Field> {
    let mut calls = BTreeMap::new();
    let mut call = "";
    for line in TABLE.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            call = name;
            continue;
        }
        let mut columns = line.split(' ');
        let (path, kind) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        let is_required = columns.next() == Some("required");
        let root: &mut Field = calls.entry(call).or_default();
        define(root, path, kind, is_required);
    }
    calls
}

fn define(field: &mut Field, path: &'static str, kind: &str, is_required: bool) {
    if path.is_empty() {
        field.is_required |= is_required;
        field.shape = match kind {
            "str" => Shape::Leaf(Type::Text),
            "int" => Shape::Leaf(Type::Integer),
            "float" => Shape::Leaf(Type::Number),
            "bool" => Shape::Leaf(Type::Boolean),
            _ => return,
        };
        return;
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    if first == "N" {
        if !matches!(field.shape, Shape::List(_)) {
            field.shape = Shape::List(Box::default());
        }
        // The list itself is required, not a field of it.
        field.is_required |= is_required && rest.is_empty();
        if let Shape::List(item) = &mut field.shape {
            define(item, rest, kind, is_required && !rest.is_empty());
        }
        return;
    }
    if !matches!(field.shape, Shape::Object(_)) {
        field.shape = Shape::Object(BTreeMap::new());
    }
    if let Shape::Object(fields) = &mut field.shape {
        define(fields.entry(first).or_default(), rest, kind, is_required);
    }
}

fn insert(field: &Field, tree: &mut Value, path: &str, whole: &str, value: &str) -> Result<()> {
    let unknown =
        || ApiError::invalid("Unsupported", format!("The parameter {whole} is not known for this action."));
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match &field.shape {
        Shape::Leaf(kind) if path.is_empty() => {
            if !tree.is_null() {
                return Err(ApiError::invalid("Duplicated", format!("The parameter {whole} is repeated.")));
            }
            *tree = typed(*kind, value).ok_or_else(|| {
                let name = whole.rsplit('.').next().unwrap_or(whole);
                ApiError::invalid(name, format!("The value of the parameter {whole} is not of its type."))
            })?;
            Ok(())
        }
        Shape::Object(fields) => {
            let field = fields.get(first).ok_or_else(unknown)?;
            if tree.is_null() {
                *tree = Value::Object(Map::new());
            }
            let next = tree.as_object_mut().ok_or_else(unknown)?.entry(first).or_insert(Value::Null);
            insert(field, next, rest, whole, value)
        }
        Shape::List(item) => {
            let index = first.parse().ok().filter(|index| (1..=MAX_INDEX).contains(index));
            let index: usize = index.ok_or_else(unknown)?;
            if tree.is_null() {
                *tree = Value::Array(Vec::new());
            }
            let list = tree.as_array_mut().ok_or_else(unknown)?;
            while list.len() < index {
                list.push(Value::Null);
            }
            insert(item, &mut list[index - 1], rest, whole, value)
        }
        Shape::Leaf(_) | Shape::Unset => Err(unknown()),
    }
}

fn typed(kind: Type, text: &str) -> Option<Value> {
    Some(match kind {
        Type::Text => text.into(),
        Type::Integer => text.parse::<i64>().ok()?.into(),
        Type::Number => text.parse::<f64>().ok().filter(|number| number.is_finite())?.into(),
        Type::Boolean => match text.to_ascii_lowercase().as_str() {
            "true" => true.into(),
            "false" => false.into(),
            _ => return None,
        },
    })
}

fn check(field: &Field, tree: &Value, path: &str) -> Result<()> {
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (&field.shape, tree) {
        (Shape::Object(fields), tree) if !tree.is_null() || path.is_empty() => {
            for (name, field) in fields {
                let value = &tree[*name];
                if field.is_required && (value.is_null() || value == "") {
                    return Err(ApiError::missing(&join(name)));
                }
                check(field, value, &join(name))?;
            }
        }
        (Shape::List(item), Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                let path = join(&(index + 1).to_string());
                if value.is_null() {
                    return Err(ApiError::missing(&path));
                }
                check(item, value, &path)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tree(action: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let owned: Vec<_> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        read(action, owned.iter())
    }

    #[test]
    fn nested_lists_become_a_tree_with_types() {
        let read = tree(
            "CreateContainerGroup",
            &[
                ("RegionId", "r"),
                ("ContainerGroupName", "vk-1"),
                ("Container.1.Name", "a"),
                ("Container.1.Image", "i"),
                ("Container.1.Cpu", "0.5"),
                ("Container.2.Name", "b"),
                ("Container.2.Image", "i"),
                ("Container.1.EnvironmentVar.2.Key", "K"),
                ("Container.1.EnvironmentVar.1.Key", "J"),
                ("Container.1.LivenessProbe.Exec.Command.1", "true"),
                ("AutoCreateEip", "True"),
            ],
        );
        assert_eq!(
            read.unwrap(),
            json!({
                "RegionId": "r",
                "ContainerGroupName": "vk-1",
                "AutoCreateEip": true,
                "Container": [
                    {
                        "Name": "a", "Image": "i", "Cpu": 0.5,
                        "EnvironmentVar": [{"Key": "J"}, {"Key": "K"}],
                        "LivenessProbe": {"Exec": {"Command": ["true"]}},
                    },
                    {"Name": "b", "Image": "i"},
                ],
            })
        );
    }

    #[test]
    fn unknown_missing_repeated_and_mistyped_parameters_are_refused() {
        let code = |action, parameters| tree(action, parameters).unwrap_err().code;
        let log = "DescribeContainerLog";
        assert_eq!(
            code(log, &[("ContainerGroupId", "g"), ("ContainerName", "c"), ("Tails", "1")]),
            "InvalidParameter.Unsupported"
        );
        assert_eq!(code(log, &[("ContainerGroupId", "g")]), "MissingContainerName");
        let mistyped = &[("ContainerGroupId", "g"), ("ContainerName", "c"), ("Tail", "many")];
        assert_eq!(code(log, mistyped), "InvalidParameter.Tail");
        let repeated = &[("ContainerGroupId", "g"), ("ContainerGroupId", "g"), ("ContainerName", "c")];
        assert_eq!(code(log, repeated), "InvalidParameter.Duplicated");
        let create = "CreateContainerGroup";
        assert_eq!(code(create, &[("RegionId", "r"), ("ContainerGroupName", "n")]), "MissingContainer");
        let gap = [("RegionId", "r"), ("ContainerGroupName", "n"), ("Container.2.Name", "a")];
        assert_eq!(code(create, &gap), "MissingContainer");
        let deeper = [("RegionId", "r"), ("ContainerGroupName", "n"), ("Container.1.Name.1", "a")];
        assert_eq!(code(create, &deeper), "InvalidParameter.Unsupported");
    }

    #[test]
    fn every_line_of_the_table_is_a_call_or_a_parameter() {
        assert_eq!(calls().count(), 18);
        for line in TABLE.lines().filter(|line| !line.starts_with("# ")) {
            let kind = line.split(' ').nth(1).unwrap();
            assert!(["str", "int", "float", "bool", "object"].contains(&kind), "{line}");
        }
    }
}
