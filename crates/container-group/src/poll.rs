//! One poll for all groups of a node, however many there are.
//!
//! A poll is a short run of calls: the feed of changes if the cloud has one, now and then a full list instead, then details of those groups
//! of which the lists do not show enough. [`Schedule`] says when the next run begins; [`Run`] is the run in progress. Neither makes calls or
//! reads a clock.

mod collection;
mod schedule;

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

pub use self::{
    collection::{Question, collect},
    schedule::Schedule,
};
use crate::{
    backend::{CallError, Class, GroupRef, Page},
    lifecycle::CallId,
};

/// The maximum number of pages of a list. A cloud that gives more repeats itself.
const MAX_PAGES: usize = 1000;

/// How often a call of a run is repeated.
const MAX_REPEATS: u32 = 8;

/// A call of a poll.
#[derive(Clone, Debug, PartialEq)]
pub enum PollCall {
    /// A page of the list: of all groups of the node, or of those with a name.
    Observe {
        /// The name, for a lookup.
        name: Option<Arc<str>>,
        /// The page.
        page: Option<String>,
    },
    /// A page of the feed.
    Changes {
        /// The time from which on it covers all changes, however late the call is made.
        since: Duration,
        /// The page.
        page: Option<String>,
    },
    /// Details of these groups.
    Detail(Vec<GroupRef>),
    /// Whether the cloud answers, and how much of the account is used.
    Probe,
}

/// A run in progress.
#[derive(Debug)]
pub struct Run {
    /// The id of the call that is awaited.
    pub id: CallId,
    /// When the run began.
    pub begun: Duration,
    /// The calls so far.
    pub calls: u32,
    /// Whether a complete list was read in this run.
    pub listed: bool,
    /// The call that is awaited.
    pub call: PollCall,
    /// How often it was repeated.
    repeated: u32,
    /// What it does now.
    pub stage: Stage,
}

/// What a run does.
#[derive(Debug)]
pub enum Stage {
    /// Reads the feed.
    Feed {
        /// From when on.
        since: Duration,
        /// Its pages.
        pages: Pages,
    },
    /// Reads the full list.
    List(Pages),
    /// Finds out whether a list that lacks most groups can be believed.
    Verify {
        /// The groups in the list.
        seen: HashSet<Arc<str>>,
        /// Groups that are not in the list.
        missing: Vec<GroupRef>,
        /// A group that is in the list: if it is not found by its id either, we cannot see our groups.
        control: Option<GroupRef>,
    },
    /// Reads details.
    Details {
        /// The groups that the call in progress asks for.
        asked: Vec<GroupRef>,
        /// Those that follow.
        rest: VecDeque<GroupRef>,
    },
}

/// The pages of a list, up to now.
#[derive(Debug, Default)]
pub struct Pages {
    seen: HashSet<Arc<str>>,
    tokens: HashSet<String>,
    incomplete: bool,
}

/// How a list goes on after a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// With this page.
    Next(String),
    /// It has ended. Whether it is complete, and the groups in it.
    End {
        /// Whether every group of the scope is in it.
        complete: bool,
        /// The ids of its groups.
        seen: HashSet<Arc<str>>,
    },
}

// === impl Pages ===

impl Pages {
    /// Adds a page. A page that does not know whether it is complete, a token that comes twice, and a list without an end make the list
    /// incomplete: it then proves the presence of groups, and never the absence of others.
    pub fn add(&mut self, page: &Page) -> Progress {
        self.seen.extend(page.groups.iter().map(|group| Arc::clone(&group.group.id)));
        self.incomplete |= page.incomplete;
        match &page.next {
            Some(token) if self.tokens.len() < MAX_PAGES && self.tokens.insert(token.clone()) => {
                Progress::Next(token.clone())
            }
            Some(_) => self.end(false),
            None => self.end(true),
        }
    }

    fn end(&mut self, regular: bool) -> Progress {
        let complete = regular && !self.incomplete;
        Progress::End { complete, seen: std::mem::take(&mut self.seen) }
    }
}

// === impl Run ===

impl Run {
    /// Begins a run with this stage.
    pub fn new(id: CallId, now: Duration, stage: Stage, call: PollCall) -> Self {
        Self { id, begun: now, calls: 1, listed: false, call, repeated: 0, stage }
    }

    /// Goes on with another call.
    pub fn advance(&mut self, id: CallId, call: PollCall) {
        self.repeated = if self.call == call { self.repeated + 1 } else { 0 };
        self.id = id;
        self.call = call;
        self.calls += 1;
    }

    /// Whether the call is repeated after this error. A list of many pages would never be read to its end if each failure began it anew; the
    /// budget delays what is throttled. An outage ends the run: it shows in the first call.
    pub fn repeats(&self, error: &CallError) -> bool {
        let may_pass = match error.class {
            Class::Throttled { .. } => true,
            Class::Unavailable | Class::Ambiguous => self.calls > 1 + self.repeated,
            _ => false,
        };
        may_pass && self.repeated < MAX_REPEATS
    }
}

/// Whether a failed call says that the cloud refuses us, so that asking again soon is useless.
pub fn is_refusal(error: &CallError) -> bool {
    error.class == Class::Denied
}

#[cfg(test)]
mod tests;
