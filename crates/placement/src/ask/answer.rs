//! What is read of the answer of a node, and what is kept.
//!
//! A node that was taken over answers what it likes, and answers are kept for each shape of pods. So an answer is as long as the question gives
//! reason for, and only the first causes of a refusal are kept, for whom the text of a condition has room anyway.

use bytes::Bytes;
use vk_provider::{
    ability::{Cause, Verdict},
    placement::{FitAnswer, FitQuery},
};

use super::AskError;
use crate::fit_answers::shortened;

/// Size of an answer in bytes, in addition to that for each pod.
const BASE_BYTES: usize = 32 << 10;
const BYTES_PER_POD: usize = 4 << 10;
/// Larger answers are read on a thread of their own.
const READ_AT_ONCE: usize = 64 << 10;
/// Causes of a refusal that are kept.
const MAX_CAUSES: usize = 8;
/// What the other causes are called.
const OTHER_CAUSES: &str = "other causes";

/// Limit of the answer to a question in bytes. A person who wants an explanation gets all that there is.
pub(super) fn max_bytes(query: &FitQuery) -> usize {
    if query.explain { usize::MAX } else { BASE_BYTES + BYTES_PER_POD * query.pods.len() }
}

/// Reads an answer.
pub(super) async fn read(json: Bytes) -> Result<FitAnswer, AskError> {
    let read =
        |json: &[u8]| serde_json::from_slice(json).map_err(|error| AskError::Invalid(error.to_string()));
    if json.len() <= READ_AT_ONCE {
        return read(&json);
    }
    let reading = tokio::task::spawn_blocking(move || read(&json)).await;
    reading.unwrap_or_else(|error| Err(AskError::Invalid(error.to_string())))
}

/// What is kept of an answer that is not for a person.
pub(super) fn cut(answer: FitAnswer) -> FitAnswer {
    FitAnswer { verdicts: answer.verdicts.into_iter().map(cut_verdict).collect(), best_nodes: None }
}

fn cut_verdict(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Fits { .. } => verdict,
        Verdict::Unknown { why } => Verdict::Unknown { why: shortened(why) },
        Verdict::Refused { mut why, lasting } => {
            let others = why.split_off(why.len().min(MAX_CAUSES));
            let mut why: Vec<Cause> =
                why.into_iter().map(|cause| Cause { text: shortened(cause.text), ..cause }).collect();
            if !others.is_empty() {
                let nodes = others.iter().fold(0, |sum: u32, cause| sum.saturating_add(cause.nodes));
                why.push(Cause { text: OTHER_CAUSES.to_owned(), nodes });
            }
            Verdict::Refused { why, lasting }
        }
    }
}
