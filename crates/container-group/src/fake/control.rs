//! What tests do to the fake cloud behind our back.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::SignedDuration;
use vk_provider::{EventKind, Quantity};

use super::{CallFaults, FakeCloud, FakeGroup, group::size};
use crate::{
    backend::{GroupEvent, GroupRef, Owner},
    conformance::{SeenGroup, TestCloud},
    identity,
};

impl FakeCloud {
    /// The groups of a pod, and those that are gone.
    fn with_groups(&self, uid: &str, mut change: impl FnMut(&mut FakeGroup)) {
        let mut state = self.0.state.lock();
        state.groups.iter_mut().filter(|one| &*one.owner.pod.uid == uid).for_each(&mut change);
    }

    /// All groups, those that are gone included.
    pub fn groups(&self) -> Vec<FakeGroup> {
        self.0.state.lock().groups.clone()
    }

    /// Someone else makes a group with another name, such as the Go provider.
    pub fn add_named_group(&self, owner: &Owner, name: &str) -> GroupRef {
        let now = self.now();
        let mut state = self.0.state.lock();
        let number = state.groups.len();
        let group = GroupRef::new(format!("x{number:06}"), name);
        state.groups.push(FakeGroup {
            group: group.clone(),
            tags: Vec::new(),
            owner: owner.clone(),
            containers: vec![("main".to_owned(), "image".to_owned())],
            created: now,
            running: now,
            deleting: None,
            gone: None,
            ended: None,
            preempted: false,
            events: Vec::new(),
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            size: size(Quantity::units(1)),
            resized: None,
        });
        group
    }

    /// The containers of a pod's groups end with this exit code.
    pub fn end(&self, uid: &str, exit_code: i32) {
        let now = self.now();
        self.with_groups(uid, |one| one.ended = one.ended.or(Some((now, exit_code))));
    }
}

#[async_trait]
impl TestCloud for FakeCloud {
    type Backend = Self;

    fn backend(&self) -> Arc<Self> {
        Arc::new(self.clone())
    }

    fn faults(&self) -> &CallFaults {
        &self.0.faults
    }

    fn set_visible(&self, visible: bool) {
        self.set(|behavior| behavior.visible = visible);
    }

    fn set_lag(&self, lag: Duration) {
        self.set(|behavior| behavior.lag = lag);
    }

    fn set_page(&self, groups: usize) {
        self.set(|behavior| behavior.page = groups);
    }

    fn set_clock_error(&self, error: SignedDuration) {
        self.set(|behavior| behavior.clock_error = error);
    }

    fn set_start(&self, start: Duration) {
        self.set(|behavior| behavior.start = start);
    }

    fn seen_groups(&self) -> Vec<SeenGroup> {
        let now = self.now();
        let live = self.groups().into_iter().filter(|one| one.is_live(now));
        live.map(|one| SeenGroup {
            group: one.group.clone(),
            owner: one.owner,
            deleting: one.deleting.is_some(),
        })
        .collect()
    }

    fn vanish(&self, uid: &str) {
        let now = self.now();
        self.with_groups(uid, |one| one.gone = one.gone.or(Some(now)));
    }

    fn preempt(&self, uid: &str) {
        let now = self.now();
        self.with_groups(uid, |one| {
            one.preempted = true;
            one.ended = Some((now, 137));
        });
    }

    fn warn(&self, uid: &str, reason: &str) {
        let time = Some(self.now());
        self.with_groups(uid, |one| {
            one.events.push(GroupEvent {
                time,
                kind: EventKind::Warning,
                reason: reason.to_owned(),
                message: "said the cloud".to_owned(),
                container: None,
            });
        });
    }

    fn add_group(&self, owner: &Owner) -> GroupRef {
        self.add_named_group(owner, &identity::name(&owner.pod.uid, owner.attempt))
    }
}
