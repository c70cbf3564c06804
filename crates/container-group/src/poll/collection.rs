//! Which groups a run asks for by their ids: calls are full, or do not wait for long.

use std::{collections::VecDeque, time::Duration};

use crate::{backend::GroupRef, lifecycle::Inquiry};

/// How long a group waits for others that fill the call.
const PATIENCE: Duration = Duration::from_secs(3);
/// The maximum number of calls for details in one run.
const MAX_CALLS: usize = 20;

/// A group to ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The group.
    pub group: GroupRef,
    /// Why and since when.
    pub inquiry: Inquiry,
}

/// The groups that a run asks for, `batch` in a call. A call that is not full waits a little, if nothing in it is urgent and `coming` others
/// may soon fill it.
pub fn collect(
    now: Duration,
    mut questions: Vec<Question>,
    coming: usize,
    batch: usize,
) -> VecDeque<GroupRef> {
    let batch = batch.max(1);
    // Those first that wait for the longest time.
    questions.sort_by(|a, b| (a.inquiry.since, &a.group.id).cmp(&(b.inquiry.since, &b.group.id)));
    let full = questions.len() - questions.len() % batch;
    let rest = &questions[full..];
    let must_go = |one: &Question| one.inquiry.urgent || now >= one.inquiry.since + PATIENCE;
    if rest.len() + coming >= batch && !rest.iter().any(must_go) {
        questions.truncate(full);
    }
    questions.truncate(batch * MAX_CALLS);
    questions.into_iter().map(|one| one.group).collect()
}
