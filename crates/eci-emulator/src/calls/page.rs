//! Pages. A token says which action it is for and where to go on: groups that are created meanwhile do not shift pages.

use serde_json::Value;

use crate::{
    cloud::{Cloud, Group},
    error::{ApiError, Result},
};

/// A page of groups.
pub(super) struct Page {
    pub(super) numbers: Vec<u64>,
    pub(super) next: Option<String>,
    /// On all pages.
    pub(super) total: usize,
}

impl Page {
    /// The groups on the page that the request asks for.
    pub(super) fn of(
        cloud: &Cloud,
        action: &str,
        request: &Value,
        most: usize,
        mut filter: impl FnMut(&Group) -> bool,
    ) -> Result<Self> {
        let most = match request["Limit"].as_i64() {
            None => most,
            Some(limit) => usize::try_from(limit)
                .ok()
                .filter(|limit| (1..=most).contains(limit))
                .ok_or_else(|| ApiError::invalid("Limit", format!("Limit must be from 1 to {most}.")))?,
        };
        let from = match request["NextToken"].as_str().filter(|token| !token.is_empty()) {
            None => u64::MAX,
            Some(token) => parse(token, action)
                .ok_or_else(|| ApiError::invalid("NextToken", "The specified NextToken is invalid."))?,
        };
        let all: Vec<u64> =
            cloud.groups().filter(|(_, group)| filter(group)).map(|(number, _)| number).collect();
        let mut rest = all.iter().copied().filter(|number| *number < from);
        let numbers: Vec<u64> = rest.by_ref().take(most).collect();
        let next =
            rest.next().and_then(|_| numbers.last()).map(|last| format!("{:x}-{last:x}", hash(action)));
        Ok(Self { numbers, next, total: all.len() })
    }
}

fn parse(token: &str, action: &str) -> Option<u64> {
    let (kind, number) = token.split_once('-')?;
    (u32::from_str_radix(kind, 16) == Ok(hash(action)))
        .then(|| u64::from_str_radix(number, 16).ok())
        .flatten()
}

fn hash(action: &str) -> u32 {
    action.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33) ^ u32::from(byte))
}
