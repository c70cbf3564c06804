//! The parameters of a request, flattened as the vendor's SDKs do.

use std::{collections::BTreeMap, fmt};

use vk_container_group::cloud::alibaba::Call;

/// Parameters by name, such as `Container.1.Image`.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Parameters(BTreeMap<String, Parameter>);

/// The value of a parameter.
#[derive(Clone, PartialEq)]
struct Parameter {
    value: String,
    /// Whether the value must not appear in errors or dumps.
    is_secret: bool,
}

/// The text of a value on the wire.
pub(crate) trait Encode {
    /// The text as the vendor's SDKs write it.
    fn encode(&self) -> String;
}

/// The name of a member of a list or object: `flatten("Container", 0, "Image")` is `Container.1.Image`.
pub(crate) fn flatten(list: &str, at: usize, member: &str) -> String {
    let number = at + 1;
    if member.is_empty() { format!("{list}.{number}") } else { format!("{list}.{number}.{member}") }
}

// === impl Parameters ===

impl Parameters {
    /// Sets a parameter.
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Encode) {
        self.0.insert(name.into(), Parameter { value: value.encode(), is_secret: false });
    }

    /// Sets a parameter if there is a value.
    pub(crate) fn set_some(&mut self, name: impl Into<String>, value: Option<impl Encode>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Sets a parameter whose value is masked wherever it could be shown.
    pub(crate) fn set_secret(&mut self, name: impl Into<String>, value: impl Encode) {
        self.0.insert(name.into(), Parameter { value: value.encode(), is_secret: true });
    }

    /// Sets the items of a list of texts.
    pub(crate) fn set_list(&mut self, name: &str, items: impl IntoIterator<Item = impl AsRef<str>>) {
        for (at, item) in items.into_iter().enumerate() {
            self.set(flatten(name, at, ""), item.as_ref());
        }
    }

    /// Adds all of the others.
    pub(crate) fn extend(&mut self, others: &Self) {
        self.0.extend(others.0.iter().map(|(name, value)| (name.clone(), value.clone())));
    }

    /// Names and values, secret ones included.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, parameter)| (name.as_str(), parameter.value.as_str()))
    }

    /// The value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|parameter| parameter.value.as_str())
    }

    /// Adds the parameters to a call.
    pub(crate) fn add_to(&self, call: Call) -> Call {
        self.0.iter().fold(call, |call, (name, Parameter { value, is_secret })| {
            if *is_secret { call.secret_parameter(name, value) } else { call.parameter(name, value) }
        })
    }
}

/// Without values that are secret.
impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |parameter: &Parameter| {
            if parameter.is_secret { "***".to_owned() } else { parameter.value.clone() }
        };
        f.debug_map().entries(self.0.iter().map(|(name, parameter)| (name, shown(parameter)))).finish()
    }
}

// === impl Encode ===

impl Encode for str {
    fn encode(&self) -> String {
        self.to_owned()
    }
}

impl Encode for String {
    fn encode(&self) -> String {
        self.clone()
    }
}

impl Encode for bool {
    fn encode(&self) -> String {
        self.to_string()
    }
}

impl Encode for i32 {
    fn encode(&self) -> String {
        self.to_string()
    }
}

impl Encode for i64 {
    fn encode(&self) -> String {
        self.to_string()
    }
}

impl Encode for f64 {
    /// With at least one decimal, as the SDKs write numbers that are not integers.
    fn encode(&self) -> String {
        format!("{self:?}")
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self) -> String {
        (**self).encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_the_vendors_sdks_do() {
        let mut parameters = Parameters::default();
        parameters.set("Cpu", 2.0);
        parameters.set("Memory", 0.512);
        parameters.set("Deadline", 5_i64);
        parameters.set("Share", true);
        parameters.set_list(&flatten("Container", 0, "Command"), ["sh", "-c"]);
        let all: Vec<(&str, &str)> = parameters.iter().collect();
        assert_eq!(
            all,
            [
                ("Container.1.Command.1", "sh"),
                ("Container.1.Command.2", "-c"),
                ("Cpu", "2.0"),
                ("Deadline", "5"),
                ("Memory", "0.512"),
                ("Share", "true"),
            ]
        );
    }

    #[test]
    fn secret_values_are_not_in_dumps() {
        let mut parameters = Parameters::default();
        parameters.set("Name", "db");
        parameters.set_secret("Value", "hunter2");
        let text = format!("{parameters:?}");
        assert!(text.contains("db") && !text.contains("hunter2"), "{text}");
    }
}
