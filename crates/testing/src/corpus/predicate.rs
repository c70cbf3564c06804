//! Predicates on a pod's status.

use serde_json::Value;

/// Checks that `actual` has everything that `expected` has. The error names the first difference.
///
/// Objects may have more fields; a field that is expected to be null must be absent. Elements of lists are matched by their `name` or `type`.
/// `"*"` matches any value, and `">= 2"` any number that is at least 2.
pub fn holds(expected: &Value, actual: &Value) -> Result<(), String> {
    at("status", expected, Some(actual))
}

fn at(path: &str, expected: &Value, actual: Option<&Value>) -> Result<(), String> {
    let actual = actual.unwrap_or(&Value::Null);
    let matches = match expected {
        Value::Object(fields) => {
            return fields
                .iter()
                .try_for_each(|(name, expected)| at(&format!("{path}.{name}"), expected, actual.get(name)));
        }
        Value::Array(elements) => {
            return elements.iter().try_for_each(|expected| {
                let key = if expected.get("name").is_some() { "name" } else { "type" };
                let found = actual.as_array().into_iter().flatten();
                let found = found.into_iter().find(|actual| actual.get(key) == expected.get(key));
                let name = expected.get(key).and_then(Value::as_str).unwrap_or("?");
                at(&format!("{path}[{name}]"), expected, found)
            });
        }
        Value::String(text) if text == "*" => !actual.is_null(),
        Value::String(text) if text.starts_with(">= ") => {
            let least = text[3..].parse::<i64>().unwrap_or_else(|error| panic!("{path}: {text}: {error}"));
            actual.as_i64().is_some_and(|number| number >= least)
        }
        other => other == actual,
    };
    if matches { Ok(()) } else { Err(format!("{path} is {actual} and not {expected}")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_found_by_name_and_fields_by_theirs() {
        let status = json!({"phase": "Running", "list": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]});
        assert_eq!(holds(&json!({"list": [{"name": "b", "n": ">= 2"}]}), &status), Ok(()));
        assert_eq!(holds(&json!({"phase": "*", "reason": null}), &status), Ok(()));
        let wrong = holds(&json!({"list": [{"name": "a", "n": 2}]}), &status);
        assert_eq!(wrong, Err("status.list[a].n is 1 and not 2".to_owned()));
        assert!(holds(&json!({"list": [{"name": "c"}]}), &status).is_err());
    }
}
