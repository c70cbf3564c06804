//! A request to the API of a cloud, before it becomes a URL and headers.

use std::{cmp::Ordering, fmt};

use bytes::Bytes;
use http::Method;

use super::redaction::Redaction;

/// A request to the API of a cloud.
///
/// Path and parameters are not encoded yet; they are encoded once, in the same way for the signature and for the URL.
#[derive(Clone)]
pub struct Request {
    operation: String,
    effect: Effect,
    method: Method,
    path: String,
    parameters: Vec<Parameter>,
    /// Parameters that the body holds, as a form.
    form: Vec<Parameter>,
    headers: Vec<Header>,
    body: Bytes,
    secrets: Vec<String>,
}

/// What a request does. It decides whether a lost answer is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Repeating the request does no harm.
    Repeatable,
    /// The request creates something that costs money. If its outcome is unknown, it must be looked up before the next attempt.
    Create,
}

/// A parameter of the query.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) value: String,
}

/// A header. The name is in lower case.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: String,
    pub(super) value: String,
}

// === impl Request ===

impl Request {
    /// A request for `/` without parameters. `operation` names it in errors and logs.
    pub fn new(method: Method, operation: impl Into<String>, effect: Effect) -> Self {
        Self {
            operation: operation.into(),
            effect,
            method,
            path: "/".to_owned(),
            parameters: Vec::new(),
            form: Vec::new(),
            headers: Vec::new(),
            body: Bytes::new(),
            secrets: Vec::new(),
        }
    }

    /// Sets the path, which begins with `/`.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Adds a parameter of the query. Names may repeat.
    #[must_use]
    pub fn parameter(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.parameters.push(Parameter { name: name.into(), value: value.into() });
        self
    }

    /// Adds a parameter whose value must not appear anywhere: if the cloud repeats it in an error, it is masked.
    #[must_use]
    pub fn secret_parameter(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let value = value.into();
        self.secrets.push(value.clone());
        self.parameter(name, value)
    }

    /// Adds a header. Names may repeat.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into().to_ascii_lowercase();
        self.headers.push(Header { name, value: value.into() });
        self
    }

    /// Sets the body and its type.
    #[must_use]
    pub fn body(self, content_type: &str, body: impl Into<Bytes>) -> Self {
        let mut request = self.header("content-type", content_type);
        request.body = body.into();
        request
    }

    /// Moves the parameters from the query into the body, as a form: a URL cannot be longer than 64 KiB.
    #[must_use]
    pub fn into_form(mut self) -> Self {
        self.form = std::mem::take(&mut self.parameters);
        let form = encode_pairs(&self.form);
        self.body("application/x-www-form-urlencoded", form)
    }

    /// Marks a value in the body as secret, as [`Request::secret_parameter`] does for the query.
    #[must_use]
    pub fn secret(mut self, value: impl Into<String>) -> Self {
        self.secrets.push(value.into());
        self
    }

    /// What errors and logs call it.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// What it does.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    pub(super) fn encoded_path(&self) -> String {
        encode(&self.path, "/")
    }

    /// The query, encoded and sorted by name and value, as signatures want it.
    pub(super) fn encoded_query(&self) -> String {
        encode_pairs(&self.parameters)
    }

    /// The parameters of query and form, like [`Request::encoded_query`].
    pub(super) fn encoded_parameters(&self) -> String {
        encode_pairs(self.parameters.iter().chain(&self.form))
    }

    pub(super) fn headers(&self) -> &[Header] {
        &self.headers
    }

    pub(super) fn payload(&self) -> &Bytes {
        &self.body
    }

    /// Masks the secrets of this request.
    pub(super) fn redaction(&self) -> Redaction {
        Redaction::new(self.secrets.iter().map(String::as_str))
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("operation", &self.operation)
            .field("effect", &self.effect)
            .field("method", &self.method)
            .field("parameters", &names(&self.parameters, |parameter| &parameter.name))
            .field("form", &names(&self.form, |parameter| &parameter.name))
            .field("headers", &names(&self.headers, |header| &header.name))
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

fn names<T>(items: &[T], name: impl Fn(&T) -> &String) -> Vec<&String> {
    items.iter().map(name).collect()
}

// === impl Header ===

impl Header {
    /// Headers are signed in the order of their names, and those of one name in the order of their values.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        (&self.name, self.value.trim()).cmp(&(&other.name, other.value.trim()))
    }
}

fn encode_pairs<'a>(pairs: impl IntoIterator<Item = &'a Parameter>) -> String {
    let mut sorted: Vec<&Parameter> = pairs.into_iter().collect();
    sorted.sort_unstable();
    let mut encoded = String::new();
    for Parameter { name, value } in sorted {
        if !encoded.is_empty() {
            encoded.push('&');
        }
        encode_into(&mut encoded, name, "");
        encoded.push('=');
        encode_into(&mut encoded, value, "");
    }
    encoded
}

/// Percent-encodes everything but the unreserved characters of RFC 3986 and those of `safe`.
pub(super) fn encode(text: &str, safe: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    encode_into(&mut encoded, text, safe);
    encoded
}

fn encode_into(encoded: &mut String, text: &str, safe: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || safe.as_bytes().contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(HEX[usize::from(byte >> 4)]));
            encoded.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreserved_characters_are_not_encoded() {
        assert_eq!(encode("AZaz09-._~", ""), "AZaz09-._~");
        assert_eq!(encode("a b+c*d/e%\u{e9}\u{1f600}", ""), "a%20b%2Bc%2Ad%2Fe%25%C3%A9%F0%9F%98%80");
        assert_eq!(encode("/a b/c", "/"), "/a%20b/c");
    }

    #[test]
    fn the_query_is_sorted_by_name_before_it_is_encoded() {
        let request = Request::new(Method::GET, "List", Effect::Repeatable)
            .parameter("b", "2")
            .parameter("a{", "")
            .parameter("b", "1")
            .parameter("aa", "x y");
        assert_eq!(request.encoded_query(), "aa=x%20y&a%7B=&b=1&b=2");
    }

    #[test]
    fn a_form_holds_all_parameters_and_leaves_none_in_the_query() {
        let request = Request::new(Method::POST, "Create", Effect::Create)
            .parameter("b", "x y")
            .parameter("a", "\u{e9}")
            .into_form();
        assert_eq!(request.encoded_query(), "");
        assert_eq!(request.payload(), "a=%C3%A9&b=x%20y");
        assert_eq!(request.parameter("c", "").encoded_parameters(), "a=%C3%A9&b=x%20y&c=");
    }

    #[test]
    fn debug_shows_names_and_no_values() {
        let request = Request::new(Method::POST, "Create", Effect::Create)
            .path("/s3cr3t-path")
            .parameter("Name", "s3cr3t-value")
            .header("Authorization", "s3cr3t-header")
            .body("text/plain", "s3cr3t-body");
        let shown = format!("{request:?}");
        assert!(!shown.contains("s3cr3t"), "{shown}");
        assert!(shown.contains("Name") && shown.contains("authorization"), "{shown}");
    }
}
