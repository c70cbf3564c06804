//! Headers of a stream.

use std::fmt;

/// The headers of a stream: names in lower case, each with one value or several, in the order of the wire.
///
/// Lookups ignore case. Values are bytes on the wire; invalid UTF-8 is replaced, which never happens in Kubernetes. A NUL separates
/// several values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    /// Several values are separated by NUL, as on the wire.
    entries: Vec<(Box<str>, Box<str>)>,
}

/// Separates the values of one name.
const SEPARATOR: char = '\0';

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds a value.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.append(name, value);
        self
    }

    /// Sets the one value of a name.
    pub fn insert(&mut self, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        match self.entries.iter_mut().find(|(other, _)| **other == *name) {
            Some((_, values)) => *values = value.into(),
            None => self.entries.push((name.into(), value.into())),
        }
    }

    /// Adds a value to a name.
    pub fn append(&mut self, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        match self.entries.iter_mut().find(|(other, _)| **other == *name) {
            Some((_, values)) => *values = format!("{values}{SEPARATOR}{value}").into(),
            None => self.entries.push((name.into(), value.into())),
        }
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).next()
    }

    /// All values of a name.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &str> {
        let entry = self.entries.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        entry.into_iter().flat_map(|(_, values)| values.split(SEPARATOR))
    }

    /// Every name with every value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries
            .iter()
            .flat_map(|(name, values)| values.split(SEPARATOR).map(move |value| (&**name, value)))
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Approximate memory use.
    pub(crate) fn size(&self) -> usize {
        self.entries.iter().map(|(name, values)| name.len() + values.len() + 32).sum()
    }

    /// Names with their values, joined as on the wire.
    pub(super) fn joined(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(name, values)| (&**name, &**values))
    }

    /// Headers from the wire; the caller has checked that names are unique and lower case.
    pub(super) fn from_wire(entries: Vec<(Box<str>, Box<str>)>) -> Self {
        Self { entries }
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

impl<Name: AsRef<str>, Value: AsRef<str>> FromIterator<(Name, Value)> for Headers {
    fn from_iter<Pairs: IntoIterator<Item = (Name, Value)>>(pairs: Pairs) -> Self {
        let mut headers = Self::new();
        for (name, value) in pairs {
            headers.append(name.as_ref(), value.as_ref());
        }
        headers
    }
}

impl<Name: AsRef<str>, Value: AsRef<str>, const N: usize> From<[(Name, Value); N]> for Headers {
    fn from(pairs: [(Name, Value); N]) -> Self {
        pairs.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_stored_in_lower_case() {
        let headers = Headers::new().with("streamType", "stdin");
        assert_eq!(headers.get("STREAMTYPE"), Some("stdin"));
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("streamtype", "stdin")]);
    }

    #[test]
    fn a_name_can_have_several_values_and_insert_leaves_one() {
        let mut headers = Headers::from([("port", "80"), ("Port", "81"), ("x", "")]);
        assert_eq!(headers.get_all("port").collect::<Vec<_>>(), ["80", "81"]);
        assert_eq!(headers.get("x"), Some(""));
        assert_eq!(headers.len(), 2);
        headers.insert("PORT", "82");
        assert_eq!(headers.get_all("port").collect::<Vec<_>>(), ["82"]);
        assert_eq!(headers.get("y"), None);
    }
}
