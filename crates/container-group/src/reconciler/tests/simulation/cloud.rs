//! A model of a cloud: exact about its groups, and late, forgetful and rude to its callers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rand::{RngExt as _, rngs::StdRng};

use crate::{
    backend::{Deletion, GroupRef, GroupState, Idempotency, Observed, Owner, Page},
    identity,
};

const PAGE: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) reference: GroupRef,
    pub(super) owner: Owner,
    pub(super) created: Duration,
    running: Duration,
    /// When a delete was accepted.
    pub(super) deleting: Option<Duration>,
    pub(super) gone: Option<Duration>,
    pub(super) ended: Option<Duration>,
    /// Made by someone else, for someone else.
    pub(super) foreign: bool,
}

#[derive(Debug)]
pub(super) struct Cloud {
    pub(super) groups: Vec<Group>,
    pub(super) tokens: BTreeMap<String, usize>,
    pub(super) idempotency: Idempotency,
    /// How late lists may be.
    pub(super) lag: Duration,
    /// Whether lists show tags, and all there is to say.
    pub(super) tagged: bool,
    /// Whether we may see our groups.
    pub(super) visible: bool,
}

impl Group {
    pub(super) fn is_live(&self, at: Duration) -> bool {
        self.gone.is_none_or(|gone| at < gone) && self.ended.is_none_or(|ended| at < ended)
    }

    fn exists(&self, at: Duration) -> bool {
        self.created <= at && self.gone.is_none_or(|gone| at < gone)
    }

    fn observed(&self, at: Duration, complete: bool) -> Observed {
        let state = if self.deleting.is_some_and(|deleting| deleting <= at) {
            GroupState::Deleting
        } else if self.ended.is_some_and(|ended| ended <= at) {
            GroupState::Failed
        } else if self.running <= at {
            GroupState::Running
        } else {
            GroupState::Provisioning
        };
        Observed {
            owner: complete.then(|| self.owner.clone()),
            complete,
            state: Some(state),
            created: complete.then(|| wall(self.created)),
            ..Observed::new(self.reference.clone())
        }
    }
}

fn wall(at: Duration) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::try_from(at).unwrap()
}

impl Cloud {
    pub(super) fn create(&mut self, now: Duration, owner: &Owner, rng: &mut StdRng) -> GroupRef {
        let uid = &*owner.pod.uid;
        let (token, name) = (identity::token(uid, owner.attempt), identity::name(uid, owner.attempt));
        let same = match self.idempotency {
            Idempotency::Token => self.tokens.get(&token).copied(),
            Idempotency::Name => {
                self.groups.iter().position(|one| *one.reference.name == *name && one.exists(now))
            }
            Idempotency::None => None,
        };
        if let Some(at) = same {
            return self.groups[at].reference.clone();
        }
        let id = match self.idempotency {
            Idempotency::Name => name.clone(),
            _ => format!("g{}", self.groups.len()),
        };
        self.tokens.insert(token, self.groups.len());
        let group = GroupRef::new(id, name);
        self.groups.push(Group {
            reference: group.clone(),
            owner: owner.clone(),
            created: now,
            running: now + Duration::from_secs(rng.random_range(0..20)),
            deleting: None,
            gone: None,
            ended: None,
            foreign: false,
        });
        group
    }

    pub(super) fn delete(&mut self, now: Duration, group: &GroupRef, rng: &mut StdRng) -> Option<Deletion> {
        let one = self.groups.iter_mut().rev().find(|one| one.reference.id == group.id && one.exists(now))?;
        if one.deleting.is_none() {
            one.deleting = Some(now);
            one.gone = Some(now + Duration::from_millis(rng.random_range(0..30_000)));
        }
        Some(Deletion::Accepted)
    }

    /// A list, as some server of the cloud remembers it. Sorted by id, so that pages can be missing groups that come in between.
    pub(super) fn list(
        &self,
        now: Duration,
        name: Option<&str>,
        page: Option<&str>,
        rng: &mut StdRng,
    ) -> Page {
        if !self.visible {
            return Page::default();
        }
        let mut shown = BTreeMap::new();
        for one in &self.groups {
            let then = now.saturating_sub(self.lag.mul_f64(rng.random_range(0.0..1.0)));
            if one.exists(then) && name.is_none_or(|name| *one.reference.name == *name) {
                shown.insert(Arc::clone(&one.reference.id), one.observed(then, self.tagged));
            }
        }
        let mut rest = shown.into_iter().filter(|(id, _)| page.is_none_or(|page| **id > *page));
        let groups: Vec<Observed> = rest.by_ref().take(PAGE).map(|(_, one)| one).collect();
        let more = rest.next().is_some();
        let next = groups.last().filter(|_| more).map(|one| one.group.id.to_string());
        Page { groups, next, incomplete: false }
    }

    pub(super) fn changes(&self, now: Duration, before: Duration, rng: &mut StdRng) -> Page {
        let since = now.saturating_sub(before);
        let recent = |one: &&Group| {
            let times = [Some(one.created), Some(one.running), one.deleting, one.ended, one.gone];
            times.into_iter().flatten().any(|time| time >= since)
        };
        let then = now.saturating_sub(self.lag.mul_f64(rng.random_range(0.0..1.0)));
        let groups = self.groups.iter().filter(recent).filter(|one| one.exists(then) && self.visible);
        Page { groups: groups.map(|one| one.observed(then, false)).collect(), ..Page::default() }
    }

    /// Calls by id are always up to date.
    pub(super) fn detail(&self, now: Duration, asked: &[GroupRef]) -> Vec<Observed> {
        let is_asked = |one: &&Group| asked.iter().any(|group| group.id == one.reference.id);
        let found = self.groups.iter().filter(is_asked).filter(|one| one.exists(now) && self.visible);
        found.map(|one| one.observed(now, true)).collect()
    }
}
