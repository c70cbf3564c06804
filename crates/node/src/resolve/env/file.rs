//! `fileKeyRef`: a variable from a file that an earlier container left in an emptyDir volume.
//!
//! The file is a strict subset of shell syntax: `NAME='value'`, one after the other, values in single quotes and taken
//! literally, newlines included. What comes after a `#`, and empty lines, count for nothing.

use k8s_openapi::api::core::v1::{FileKeySelector, Pod};
use vk_files::RootDir;
use vk_provider::{
    Error, Result,
    resolve::{Facts, Reference, ReferenceKind},
};

use super::super::objects::{Remark, namespace, remark, unresolved};

/// No line may be longer; the kubelet's limit.
const LONGEST_LINE: usize = 64 * 1024 - 1;
/// What we read at most; no environment could hold as much.
const LARGEST_FILE: u64 = 1 << 20;

/// The value; `None` where the key may be missing and is. An empty value counts as missing.
pub(super) fn value(
    field: &FileKeySelector,
    pod: &Pod,
    facts: &Facts,
    remarks: &mut Vec<Remark>,
) -> Result<Option<String>> {
    let FileKeySelector { volume_name, path, key, .. } = field;
    let Some(place) = facts.volumes.get(volume_name) else {
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
    // Also where the key is optional: a kubelet wants the file itself to be there and to be well formed.
    let broken = |cause: Box<dyn std::error::Error + Send + Sync>| {
        unresolved(reference.clone(), "couldn't parse env file".to_owned()).caused_by(cause)
    };
    let content = RootDir::open(place)
        .and_then(|root| root.read(path, LARGEST_FILE))
        .map_err(|error| broken(Box::new(error)))?;
    let value = find(&content, key).map_err(|error| broken(error.into()))?;
    if !value.is_empty() {
        return Ok(Some(value));
    }
    let reference = reference.clone().key(key);
    if field.optional == Some(true) {
        remark(remarks, Remark::Missing(reference));
        return Ok(None);
    }
    let full = place.join(path);
    let message = format!("environment variable key {key:?} not found in file \"{}\"", full.display());
    Err(unresolved(reference, message))
}

/// The value of a key; empty where it is not there. What comes behind it is not looked at.
fn find(content: &[u8], key: &str) -> Result<String, String> {
    let mut lines = Lines { rest: content, number: 0 };
    while let Some(line) = lines.next()? {
        let line = trim_start(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let fault = |number: usize, what: &str| {
            format!("invalid environment variable format at line {number}: {what}")
        };
        let Some(equals) = line.iter().position(|byte| *byte == b'=') else {
            return Err(fault(lines.number, "missing '='"));
        };
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        let wanted = name == key.as_bytes();
        match name.last() {
            None => return Err(fault(lines.number, "empty variable name")),
            Some(b' ' | b'\t') => return Err(fault(lines.number, "whitespace before '=' is not allowed")),
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
            return Err(fault(lines.number, "value must be enclosed in single quotes"));
        };
        let began = lines.number;
        let mut text = Vec::new();
        let behind = loop {
            if let Some(end) = rest.iter().position(|byte| *byte == b'\'') {
                text.extend_from_slice(&rest[..end]);
                break trim_start(&rest[end + 1..]);
            }
            text.extend_from_slice(rest);
            text.push(b'\n');
            rest = lines.next()?.ok_or_else(|| {
                format!("invalid environment variable format starting at line {began}: unclosed single quote")
            })?;
        };
        if !behind.is_empty() && !behind.starts_with(b"#") {
            return Err(fault(lines.number, "unexpected content after closing quote"));
        }
        if wanted {
            return String::from_utf8(text).map_err(|_| fault(began, "value is not UTF-8"));
        }
    }
    Ok(String::new())
}

fn trim_start(line: &[u8]) -> &[u8] {
    let blank = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &line[blank..]
}

/// Lines without their ends, be those `\n` or `\r\n`.
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
        if line.len() > LONGEST_LINE {
            return Err(format!("line {} is longer than {LONGEST_LINE} bytes", self.number));
        }
        self.rest = rest;
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

#[cfg(test)]
mod tests;
