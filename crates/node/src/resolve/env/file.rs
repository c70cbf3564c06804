//! `fileKeyRef`: a variable from a file that an earlier container wrote to an emptyDir volume.
//!
//! The format is a strict subset of shell syntax: lines `NAME='value'` with literal values in single quotes, which may
//! contain newlines. Empty lines and comments (`#`) are ignored.

use k8s_openapi::api::core::v1::{FileKeySelector, Pod};
use vk_files::RootDir;
use vk_provider::{
    Error, Result,
    resolve::{Facts, Reference, ReferenceKind},
};

use super::super::fetched_objects::{ResolveWarning, add_warning, namespace, unresolved};

/// Maximum length of a line (the kubelet's limit).
const MAX_LINE: usize = 64 * 1024 - 1;
/// Maximum file size; larger than any environment.
const MAX_FILE: u64 = 1 << 20;

/// The value; `None` if the key is optional and missing. An empty value counts as missing.
pub(super) fn value(
    field: &FileKeySelector,
    pod: &Pod,
    facts: &Facts,
    warnings: &mut Vec<ResolveWarning>,
) -> Result<Option<String>> {
    let FileKeySelector { volume_name, path, key, .. } = field;
    let Some(directory) = facts.volumes.get(volume_name) else {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        return Err(if volumes.iter().any(|volume| volume.name == *volume_name) {
            Error::unsupported(format!(
                "this provider cannot read files of volume {volume_name:?}, so fileKeyRef does not work on this node"
            ))
        } else {
            Error::invalid(format!("cannot find the volume {volume_name:?} referenced by FileKeyRef"))
        });
    };
    let reference = Reference::new(ReferenceKind::File, namespace(pod), format!("{volume_name}/{path}"));
    // Even if the key is optional: like in the kubelet, the file must exist and be valid.
    let parse_error = |cause: Box<dyn std::error::Error + Send + Sync>| {
        unresolved(reference.clone(), "couldn't parse env file".to_owned()).caused_by(cause)
    };
    let content = RootDir::open(directory)
        .and_then(|root| root.read(path, MAX_FILE))
        .map_err(|error| parse_error(Box::new(error)))?;
    let value = find(&content, key).map_err(|error| parse_error(error.into()))?;
    if !value.is_empty() {
        return Ok(Some(value));
    }
    let reference = reference.clone().key(key);
    if field.optional == Some(true) {
        add_warning(warnings, ResolveWarning::MissingOptional(reference));
        return Ok(None);
    }
    let full = directory.join(path);
    let message = format!("environment variable key {key:?} not found in file \"{}\"", full.display());
    Err(unresolved(reference, message))
}

/// The value of a key; empty if it is not found. The rest of the file after the key is not parsed.
fn find(content: &[u8], key: &str) -> Result<String, String> {
    let mut lines = Lines { rest: content, number: 0 };
    while let Some(line) = lines.next()? {
        let line = trim_start(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let format_error = |number: usize, what: &str| {
            format!("invalid environment variable format at line {number}: {what}")
        };
        let Some(equals) = line.iter().position(|byte| *byte == b'=') else {
            return Err(format_error(lines.number, "missing '='"));
        };
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        let wanted = name == key.as_bytes();
        match name.last() {
            None => return Err(format_error(lines.number, "empty variable name")),
            Some(b' ' | b'\t') => {
                return Err(format_error(lines.number, "whitespace before '=' is not allowed"));
            }
            Some(_) => {}
        }
        // As in a shell: `NAME= 'value'` sets nothing.
        if matches!(value.first(), Some(b' ' | b'\t')) {
            if wanted {
                return Ok(String::new());
            }
            continue;
        }
        let Some(mut rest) = value.strip_prefix(b"'") else {
            return Err(format_error(lines.number, "value must be enclosed in single quotes"));
        };
        let first_line = lines.number;
        let mut text = Vec::new();
        let behind = loop {
            if let Some(end) = rest.iter().position(|byte| *byte == b'\'') {
                text.extend_from_slice(&rest[..end]);
                break trim_start(&rest[end + 1..]);
            }
            text.extend_from_slice(rest);
            text.push(b'\n');
            rest = lines.next()?.ok_or_else(|| {
                format!(
                    "invalid environment variable format starting at line {first_line}: unclosed single quote"
                )
            })?;
        };
        if !behind.is_empty() && !behind.starts_with(b"#") {
            return Err(format_error(lines.number, "unexpected content after closing quote"));
        }
        if wanted {
            return String::from_utf8(text).map_err(|_| format_error(first_line, "value is not UTF-8"));
        }
    }
    Ok(String::new())
}

fn trim_start(line: &[u8]) -> &[u8] {
    let blank = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &line[blank..]
}

/// Lines without their terminator (`\n` or `\r\n`).
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<Option<&'a [u8]>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let (line, rest) = match end {
            Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
            None => (self.rest, &[][..]),
        };
        self.number += 1;
        if line.len() > MAX_LINE {
            return Err(format!("line {} is longer than {MAX_LINE} bytes", self.number));
        }
        self.rest = rest;
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

#[cfg(test)]
mod tests;
