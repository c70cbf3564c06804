//! One copy, and what to do about it next.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_provider::PodRef;
use vk_supervisor::Backoff;

use super::{
    Kind,
    twin::{Difference, Forged, Found, Source},
};

/// How soon and how seldom a call that failed is made again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_mins(1));
/// How often somebody else's object is looked at again: perhaps it is gone.
const FOREIGN: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(5));

/// How often what was written is written again: somebody changes it back.
const REPAIRS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// After so much calm, a repair is the first one.
const CALM: Duration = Duration::from_mins(2);
/// What a lower pod still names is looked at again after this and the grace.
const USED: Duration = Duration::from_mins(4);

/// A call on a lower object.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Makes it, hung on the anchor where there is one given.
    Create(Arc<Forged>, Option<OwnerReference>),
    /// Makes this version of it what it shall be.
    Patch(Box<Found>, Arc<Forged>),
    /// Deletes the one with this UID.
    Delete(String),
    /// Looks at it.
    Read,
    /// Looks whether a lower pod of our upper cluster names it.
    Survey,
}

/// What is known above.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Upper {
    Unread,
    Absent,
    /// It is there, and is not to be copied: what is below stays as it is.
    Skipped,
    There(Arc<Forged>),
}

/// What is known below.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lower {
    Unread,
    Absent,
    There(Box<Found>),
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing, before this time.
    Rest(Option<Duration>),
    /// A call.
    Call(Call),
    /// To make it there has to be a namespace.
    Settle,
    /// Nobody needs to know of it any more.
    Forget,
}

/// A copy.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) source: Source,
    /// The pods that name it.
    pub(super) pods: BTreeSet<PodRef>,
    /// Those of them that were told about it.
    pub(super) told: BTreeSet<PodRef>,
    pub(super) upper: Upper,
    pub(super) lower: Lower,
    /// What is known below may be old, and so may be what a call that is under way finds: somebody has to look.
    pub(super) doubted: bool,
    /// The newest version below that was heard of, also of its end.
    pub(super) newest: u64,
    pub(super) watched: bool,
    pub(super) under_way: Option<Call>,
    pub(super) not_before: Duration,
    pub(super) backoff: Backoff,
    foreign: Backoff,
    repairs: Backoff,
    /// What was written last.
    written: Option<Arc<Forged>>,
    /// Since when no pod names it.
    unwanted: Duration,
    /// No lower pod names it either.
    unused: bool,
    /// What the last call said.
    pub(super) trouble: Option<Error>,
    /// When it is looked at again.
    pub(super) due: Option<Duration>,
}

// === impl Entry ===

impl Entry {
    pub(super) fn new(kind: Kind, source: Source, now: Duration) -> Self {
        Self {
            kind,
            source,
            pods: BTreeSet::new(),
            told: BTreeSet::new(),
            upper: Upper::Unread,
            // What is ours is heard of before anything is done. What is not heard of is not there, or not ours.
            lower: Lower::Absent,
            doubted: false,
            newest: 0,
            watched: false,
            under_way: None,
            not_before: Duration::ZERO,
            backoff: BACKOFF,
            foreign: FOREIGN,
            repairs: REPAIRS,
            written: None,
            unwanted: now,
            unused: false,
            trouble: None,
            due: None,
        }
    }

    pub(super) fn want(&mut self, pod: PodRef) {
        self.pods.insert(pod);
        self.unused = false;
    }

    pub(super) fn release(&mut self, pod: &PodRef, now: Duration) {
        self.told.remove(pod);
        if self.pods.remove(pod) && self.pods.is_empty() {
            self.unwanted = now;
            self.unused = false;
        }
    }

    /// The lower object, if it is the copy of our upper one.
    pub(super) fn ours(&self) -> Option<&Found> {
        match &self.lower {
            Lower::There(found) if found.source.as_ref() == Some(&self.source) => Some(found),
            _ => None,
        }
    }

    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.lower, Lower::There(_)) && self.ours().is_none()
    }

    /// Whether the copy is kept as the upper object is.
    fn is_kept(&self) -> bool {
        !self.pods.is_empty() || !self.kind.goes_with_pods()
    }

    pub(super) fn next(&self, now: Duration, anchor: Option<&OwnerReference>, grace: Duration) -> Step {
        if self.under_way.is_some() {
            return Step::Rest(None);
        }
        if self.pods.is_empty() && !self.is_held_below() {
            return Step::Forget;
        }
        if now < self.not_before {
            return Step::Rest(Some(self.not_before));
        }
        match &self.lower {
            _ if self.doubted => return Step::Call(Call::Read),
            Lower::Unread => return Step::Call(Call::Read),
            // It takes as long as its finalizers do.
            Lower::There(found) if found.deleting && self.ours().is_some() => {
                return Step::Call(Call::Read);
            }
            _ => {}
        }
        if !self.is_kept() {
            return self.next_of_unwanted(now, grace);
        }
        match (&self.upper, self.ours()) {
            (Upper::There(forged), Some(found)) => match found.against(forged) {
                Difference::None => Step::Rest(None),
                Difference::Change => Step::Call(Call::Patch(Box::new(found.clone()), Arc::clone(forged))),
                Difference::Replace => Step::Call(Call::Delete(found.uid.clone())),
            },
            (Upper::Absent, Some(found)) => Step::Call(Call::Delete(found.uid.clone())),
            (Upper::There(forged), None) => match anchor {
                Some(anchor) => {
                    let anchor = OwnerReference { controller: None, ..anchor.clone() };
                    let anchor = Some(anchor).filter(|_| self.kind.is_anchored());
                    Step::Call(Call::Create(Arc::clone(forged), anchor))
                }
                None => Step::Settle,
            },
            (Upper::Absent, None) | (Upper::Unread | Upper::Skipped, _) => Step::Rest(None),
        }
    }

    fn next_of_unwanted(&self, now: Duration, grace: Duration) -> Step {
        let Some(found) = self.ours() else { return Step::Forget };
        let end = self.unwanted + grace;
        if now < end {
            return Step::Rest(Some(end));
        }
        Step::Call(if self.unused { Call::Delete(found.uid.clone()) } else { Call::Survey })
    }

    /// Whether there is something below that may be ours.
    fn is_held_below(&self) -> bool {
        self.lower == Lower::Unread || self.ours().is_some()
    }

    /// Takes note of the lower object, unless something newer is known: the watch trails our writes, and the answer to a slow write
    /// trails the watch.
    pub(super) fn see(&mut self, found: Found) {
        if found.version > self.newest {
            self.newest = found.version;
            self.lower = Lower::There(Box::new(found));
        }
    }

    /// Takes note of its end.
    pub(super) fn miss(&mut self, version: u64) {
        if version >= self.newest {
            self.newest = version;
            self.lower = Lower::Absent;
        }
    }

    /// Takes the answer to a look at it.
    pub(super) fn look(&mut self, found: Option<Found>, now: Duration, rng: &mut rand::rngs::StdRng) {
        self.trouble = None;
        let Some(found) = found else {
            self.lower = Lower::Absent;
            // It comes and goes.
            if self.backoff.failures() > 1 {
                self.not_before = now + self.backoff.next(None, rng);
            }
            return;
        };
        if found.version < self.newest {
            // Something happened since. What is read next is true.
            self.newest = found.version;
            self.lower = Lower::Unread;
            return;
        }
        self.newest = found.version;
        let deleting = found.deleting;
        self.lower = Lower::There(Box::new(found));
        if self.is_foreign() {
            self.not_before = now + self.foreign.next(None, rng);
        } else if deleting {
            self.not_before = now + self.backoff.next(None, rng);
        }
    }

    /// A lower pod names it, or none does.
    pub(super) fn surveyed(&mut self, used: bool, now: Duration) {
        self.unused = !used;
        if used {
            self.unwanted = now + USED;
        }
    }

    /// Something was written. The first time is at once; to write the same again and again means that somebody fights us.
    pub(super) fn wrote(&mut self, call: &Call, now: Duration, rng: &mut rand::rngs::StdRng) {
        let (Call::Create(forged, _) | Call::Patch(_, forged)) = call else { return };
        if self.written.as_ref() == Some(forged) {
            if now > self.not_before + CALM {
                self.repairs.reset();
            }
            self.not_before = now + self.repairs.next(None, rng);
        } else {
            self.repairs.reset();
        }
        self.written = Some(Arc::clone(forged));
    }

    /// How a pod that names it stands.
    pub(super) fn standing(&self) -> Standing {
        let ready = match (&self.upper, self.ours()) {
            (Upper::Unread, _) => false,
            (Upper::Absent | Upper::Skipped, _) => true,
            // A claim is there or not: what it asks for may take long to be given.
            (_, Some(found)) if self.kind == Kind::Claim => !found.deleting,
            (Upper::There(forged), Some(found)) => {
                !found.deleting && found.against(forged) == Difference::None
            }
            (Upper::There(_), None) => self.is_foreign(),
        };
        match &self.trouble {
            _ if ready => Standing::Ready,
            Some(error) => Standing::Failed(error.clone()),
            None => Standing::Waiting,
        }
    }
}

/// How a pod stands with what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All that there is above is there below.
    Ready,
    /// Not yet.
    Waiting,
    /// Not yet, and the last attempt failed.
    Failed(Error),
}
