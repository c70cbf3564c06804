//! The identity of groups: names, tags, idempotency tokens, and the hash of what can change in a running pod.
//!
//! The name of a group is made of the pod's UID and nothing else: `<namespace>-<name>` is ambiguous, and the next pod of that name would have
//! it too. Namespace, name and the rest are in the tags, so that the groups of an account are enough to rebuild everything after a restart.

mod go_provider;
mod spec_hash;
mod tags;

use aws_lc_rs::digest::{SHA256, digest};
use vk_provider::{Error, Result};

pub use self::{
    go_provider::{eci_scope_tags, read_eci_tags},
    spec_hash::{SpecChange, SpecHash},
    tags::{RESERVED_PREFIX, read_tags, scope_tags},
};
use crate::backend::{Owner, TagLimits};

const PREFIX: &str = "vk-";
/// The prefix of names for UIDs that are not UUIDs, as of pods that were not created by an API server.
const HASHED_PREFIX: &str = "vkx-";
/// The alphabet of RFC 4648 in lower case: allowed in the names of every cloud.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// The number of characters for 16 bytes.
const ENCODED_UUID: usize = 26;

/// Names and marks the groups of one node.
#[derive(Clone, Debug)]
pub struct Identity {
    user_tags: Vec<(String, String)>,
    limits: TagLimits,
}

/// The name of the group for a pod: `vk-` and the UID in base32, with the attempt from the second on.
///
/// ```
/// use vk_container_group::identity::{name, parse_name};
///
/// let uid = "6f0c1f2a-52f5-4b0e-9d5e-3f1b7f0a9c11";
/// assert_eq!(name(uid, 1), "vk-n4gb6kss6vfq5hk6h4nx6cu4ce");
/// assert_eq!(parse_name(&name(uid, 2)), Some((uid.to_owned(), 2)));
/// ```
pub fn name(uid: &str, attempt: u32) -> String {
    let base = match uuid_bytes(uid) {
        Some(bytes) => format!("{PREFIX}{}", base32(&bytes)),
        None => format!("{HASHED_PREFIX}{}", base32(&digest(&SHA256, uid.as_bytes()).as_ref()[..16])),
    };
    if attempt > 1 { format!("{base}-{attempt}") } else { base }
}

/// The UID and attempt in the name of a group; `None` if it is not one of ours, or has a UID that is not a UUID.
pub fn parse_name(name: &str) -> Option<(String, u32)> {
    let rest = name.strip_prefix(PREFIX)?;
    let (encoded, attempt) = match rest.split_once('-') {
        None => (rest, 1),
        Some((encoded, attempt)) => {
            let number: u32 = attempt.parse().ok()?;
            // Only as we write it: `vk-...-1` and `vk-...-02` are names of others.
            (encoded, Some(number).filter(|number| *number > 1 && number.to_string() == attempt)?)
        }
    };
    Some((uuid_text(&decode(encoded)?), attempt))
}

/// The idempotency token of an attempt: 52 characters, always the same for the same attempt.
pub fn token(uid: &str, attempt: u32) -> String {
    base32(digest(&SHA256, format!("{uid}/{attempt}").as_bytes()).as_ref())
}

// === impl Identity ===

impl Identity {
    /// An identity that adds these tags of the user to every group.
    pub fn new(user_tags: Vec<(String, String)>, limits: TagLimits) -> Result<Self> {
        for (key, value) in &user_tags {
            if key.starts_with(RESERVED_PREFIX) {
                return Err(Error::invalid(format!(
                    "tag {key:?}: keys that begin with {RESERVED_PREFIX:?} are reserved; choose another key"
                )));
            }
            if key.is_empty() || key.chars().count() > limits.key || value.chars().count() > limits.value {
                return Err(Error::invalid(format!(
                    "tag {key:?}: a key has 1 to {} characters, a value at most {}",
                    limits.key, limits.value
                )));
            }
        }
        let own = tags::most_tags(&limits);
        if own + user_tags.len() > limits.count {
            return Err(Error::invalid(format!(
                "{} tags: this cloud allows {} for a group, of which {own} are needed for the pod's identity",
                user_tags.len(),
                limits.count
            )));
        }
        Ok(Self { user_tags, limits })
    }

    /// All tags of a group.
    pub fn tags(&self, owner: &Owner) -> Vec<(String, String)> {
        let mut all = tags::write_tags(owner, &self.limits);
        all.extend(self.user_tags.iter().cloned());
        all
    }
}

/// The bytes of a UUID in its canonical form.
fn uuid_bytes(uid: &str) -> Option<[u8; 16]> {
    let digits: String = uid.chars().filter(|letter| *letter != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    (uuid_text(&bytes) == uid).then_some(bytes)
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for half in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(half), 16).unwrap_or('0'));
        }
    }
    text
}

pub(crate) fn base32(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let (mut buffer, mut bits) = (0_u32, 0);
    for byte in bytes {
        buffer = buffer << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(letter(buffer >> bits));
        }
    }
    if bits > 0 {
        text.push(letter(buffer << (5 - bits)));
    }
    text
}

fn letter(five_bits: u32) -> char {
    char::from(ALPHABET[(five_bits & 31) as usize])
}

/// The 16 bytes that are encoded like this, and in no other way.
fn decode(text: &str) -> Option<[u8; 16]> {
    if text.len() != ENCODED_UUID {
        return None;
    }
    let (mut bytes, mut filled) = ([0; 16], 0);
    let (mut buffer, mut bits) = (0_u32, 0);
    for letter in text.bytes() {
        let value = ALPHABET.iter().position(|one| *one == letter)?;
        buffer = (buffer << 5 | u32::try_from(value).ok()?) & 0xFFFF;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            *bytes.get_mut(filled)? = u8::try_from(buffer >> bits & 0xFF).ok()?;
            filled += 1;
        }
    }
    (filled == 16 && base32(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests;
