//! The query of a request, read as Kubernetes reads it.

use http::Uri;

/// Names and values, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

// === impl Query ===

impl Query {
    pub(super) fn of(uri: &Uri) -> Self {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// The first value of a name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on: anything but `false` and `0` turns it on, as in Kubernetes.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    /// A whole number. An empty value is none.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let Some(value) = self.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| format!("{name}: {value:?} is not a whole number"))
    }
}
