//! The poll: what a run asks for, and what its answers mean.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{Answer, Call, Effect, Reconciler, Unidentified, unusable};
use crate::{
    backend::{CallError, CallResult, GroupRef, Health, Observed, Page},
    identity,
    lifecycle::{Group, Inquiry, PodGroups, PollRun},
    poll::{Pages, PollCall, Progress, Question, Run, Stage, collect, is_refusal},
};

/// How often a full list is read although the cloud has a feed.
const RELIST: Duration = Duration::from_mins(5);
/// A list of many pages is read more rarely.
const RELIST_PER_CALL: Duration = Duration::from_secs(12);
/// How much further back than the last poll the feed is read.
const FEED_MARGIN: Duration = Duration::from_secs(15);
/// The feed is asked for whole seconds, and the call takes time.
const FEED_ROUNDING: Duration = Duration::from_secs(1);
/// So many pods whose calls wait for the budget make polls rarer.
const CROWD: usize = 20;
/// How often details are read of groups that do not seem to change.
const SWEEP: Duration = Duration::from_mins(5);
/// When a group whose owner is not known is asked for again.
const ASK_AGAIN: Duration = Duration::from_mins(10);

impl Reconciler {
    pub(super) fn begin_run(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let id = self.ids.issue();
        let (stage, call) = if let Some(followed) = self.followed.filter(|_| !self.needs_list(now)) {
            let since = followed.saturating_sub(FEED_MARGIN);
            let call = PollCall::Changes { since, page: None };
            (Stage::Feed { since, pages: Pages::default() }, call)
        } else {
            let call = PollCall::Observe { name: None, page: None };
            (Stage::List(Pages::default()), call)
        };
        self.run = Some(Run::new(id, now, stage, call.clone()));
        effects.push(Effect::Poll { id, call });
    }

    fn needs_list(&self, now: Duration) -> bool {
        let pause = RELIST.max(RELIST_PER_CALL * self.list_calls);
        let outdated = self.listed.is_none_or(|listed| now >= listed + pause);
        // An earlier process may have created something that the first list did not show yet.
        let uncertain = !self.certain && now >= self.session + self.policy.consistency;
        let leaving = self.groups().filter(|(_, group)| group.is_leaving()).count();
        let cheaper = leaving.div_ceil(self.policy.detail_batch) > self.list_calls as usize;
        let wanted = || self.groups().any(|(_, group)| group.wants_list());
        !self.policy.feed
            || !self.synced
            || outdated
            || uncertain
            || self.blind.is_some()
            || cheaper
            || wanted()
    }

    pub(super) fn poll_answered(&mut self, now: Duration, answer: Answer, effects: &mut Vec<Effect>) {
        let Some(mut run) = self.run.take() else { return };
        if let Answer::Page(Err(error)) | Answer::Details(Err(error)) = &answer
            && run.repeats(error)
        {
            let call = run.call.clone();
            return self.call(run, call, effects);
        }
        match (std::mem::replace(&mut run.stage, Stage::List(Pages::default())), answer) {
            (Stage::Feed { since, mut pages }, Answer::Page(Ok(page))) => {
                match self.page_sighted(now, &mut pages, page, effects) {
                    Progress::Next(token) => {
                        run.stage = Stage::Feed { since, pages };
                        self.call(run, PollCall::Changes { since, page: Some(token) }, effects);
                    }
                    Progress::End { complete, seen } => {
                        if complete {
                            self.followed = Some(run.begun);
                            self.missed_in_feed(now, &run, since, &seen, effects);
                        }
                        self.read_details(now, run, effects);
                    }
                }
            }
            (Stage::List(mut pages), Answer::Page(Ok(page))) => {
                match self.page_sighted(now, &mut pages, page, effects) {
                    Progress::Next(token) => {
                        run.stage = Stage::List(pages);
                        let call = PollCall::Observe { name: None, page: Some(token) };
                        self.call(run, call, effects);
                    }
                    Progress::End { complete: true, seen } => self.listed(now, run, seen, effects),
                    Progress::End { complete: false, .. } => {
                        let text = "the list of groups is incomplete";
                        self.run_failed(now, &CallError::unavailable(text), effects);
                    }
                }
            }
            (
                Stage::Verify { seen, missing, control },
                answer @ (Answer::Details(Ok(_)) | Answer::Health(Ok(_))),
            ) => {
                let proven = match answer {
                    Answer::Details(Ok(found)) => {
                        self.is_proven(now, &missing, control.as_ref(), found, effects)
                    }
                    Answer::Health(Ok(health)) => is_unused(&health),
                    _ => false,
                };
                if proven {
                    self.apply_list(now, &mut run, &seen, effects);
                } else {
                    let text = format!("{} groups are missing from the list at once", missing.len());
                    self.set_blind(Some(text), effects);
                }
                self.read_details(now, run, effects);
            }
            (Stage::Details { asked, rest }, Answer::Details(Ok(found))) => {
                self.details_read(now, &asked, found, effects);
                self.next_details(now, run, rest, effects);
            }
            (_, Answer::Page(Err(error)) | Answer::Details(Err(error)) | Answer::Health(Err(error))) => {
                self.run_failed(now, &error, effects);
            }
            _ => self.run_failed(now, &unusable(), effects),
        }
    }

    fn call(&mut self, mut run: Run, call: PollCall, effects: &mut Vec<Effect>) {
        let id = self.ids.issue();
        run.advance(id, call.clone());
        self.run = Some(run);
        effects.push(Effect::Poll { id, call });
    }

    fn run_failed(&mut self, now: Duration, error: &CallError, effects: &mut Vec<Effect>) {
        self.schedule.failed(now, is_refusal(error), &mut self.rng);
        effects.push(Effect::Polled(Err(error.clone())));
    }

    fn run_ended(&mut self, now: Duration, run: &Run, effects: &mut Vec<Effect>) {
        let busy = self.is_busy();
        let queued = self.pods.values().filter(|groups| groups.is_queued()).take(CROWD).count();
        self.schedule.set_crowded(queued == CROWD);
        self.schedule.succeeded(now, run.calls, busy, &mut self.rng);
        effects.push(Effect::Polled(Ok(())));
    }

    fn page_sighted(
        &mut self,
        now: Duration,
        pages: &mut Pages,
        page: Page,
        effects: &mut Vec<Effect>,
    ) -> Progress {
        let progress = pages.add(&page);
        for observed in page.groups {
            self.sighted(now, observed, false, effects);
        }
        progress
    }

    /// A complete list was read.
    fn listed(&mut self, now: Duration, mut run: Run, seen: HashSet<Arc<str>>, effects: &mut Vec<Effect>) {
        self.list_calls = run.calls;
        if self.policy.feed {
            // Lists of many pages are rare already: changes are still to be seen soon.
            run.calls = 1;
        }
        let is_expected = |group: &Group| group.is_expected(run.begun, self.policy.consistency);
        let expected: Vec<&GroupRef> = self
            .groups()
            .map(|(_, group)| group)
            .filter(|group| is_expected(group))
            .map(Group::group)
            .collect();
        let missing: Vec<GroupRef> =
            expected.iter().filter(|group| !seen.contains(&group.id)).map(|group| (*group).clone()).collect();
        if !self.is_doubtful(&run, &missing, expected.len(), &seen) {
            self.apply_list(now, &mut run, &seen, effects);
            return self.read_details(now, run, effects);
        }
        // A cloud that does not let us see our groups returns an empty list.
        let control = self.groups().map(|(_, group)| group.group()).find(|group| seen.contains(&group.id));
        let control = control.cloned();
        let batch = self.policy.detail_batch;
        let call = match &control {
            Some(control) if batch > 1 => {
                let asked = [control].into_iter().chain(&missing).take(batch);
                PollCall::Detail(asked.cloned().collect())
            }
            Some(_) => PollCall::Detail(missing[..1].to_vec()),
            None => PollCall::Probe,
        };
        run.stage = Stage::Verify { seen, missing, control };
        self.call(run, call, effects);
    }

    /// Whether a complete list that lacks these groups may be that of a caller who may not see them.
    fn is_doubtful(
        &self,
        run: &Run,
        missing: &[GroupRef],
        expected: usize,
        seen: &HashSet<Arc<str>>,
    ) -> bool {
        if missing.len() >= 2 && missing.len() * 2 > expected {
            return true;
        }
        let groups = || self.groups().map(|(_, group)| group);
        let sees_any = groups().any(|group| seen.contains(&group.group().id));
        if missing.is_empty() || sees_any {
            return false;
        }
        // Those that have ended should be in the list, too. And who has never seen a group may not be allowed to.
        let known = groups().filter(|group| group.is_known(run.begun, self.policy.consistency)).count();
        let is_missing = |group: &&Group| missing.contains(group.group());
        known >= 2 || groups().filter(is_missing).any(|group| group.is_unproven(run.begun))
    }

    /// Whether a call that asked for missing groups and for one that is there found only the latter.
    fn is_proven(
        &mut self,
        now: Duration,
        missing: &[GroupRef],
        control: Option<&GroupRef>,
        found: Vec<Observed>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let has = |group: &GroupRef| found.iter().any(|one| one.group.id == group.id);
        let sees = self.policy.detail_batch == 1 || control.is_some_and(has);
        let proven = sees && !missing.iter().any(has);
        for observed in found {
            self.sighted(now, observed, true, effects);
        }
        proven
    }

    /// Believes a complete list.
    fn apply_list(
        &mut self,
        now: Duration,
        run: &mut Run,
        seen: &HashSet<Arc<str>>,
        effects: &mut Vec<Effect>,
    ) {
        run.listed = true;
        for groups in self.pods.values_mut() {
            groups.confirm(seen);
        }
        self.set_blind(None, effects);
        self.listed = Some(run.begun);
        self.followed = Some(run.begun);
        let consistency = self.policy.consistency;
        let missing: Vec<_> = self
            .groups()
            .filter(|(_, group)| !seen.contains(&group.group().id))
            .filter(|(_, group)| group.may_be_missing(run.begun, consistency))
            .map(|(pod, group)| (Arc::clone(&pod.uid), Arc::clone(&group.group().id)))
            .collect();
        for (uid, id) in missing {
            self.with(now, &uid, effects, |groups, around| groups.absent(around, &id, false));
        }
        let certain = run.begun >= self.session + consistency;
        if !self.synced || certain != self.certain {
            let first = !std::mem::replace(&mut self.synced, true);
            self.certain |= certain;
            effects.extend(first.then_some(Effect::Synced));
            self.tick_all(now, effects);
        }
    }

    fn set_blind(&mut self, why: Option<String>, effects: &mut Vec<Effect>) {
        if self.blind != why {
            self.blind.clone_from(&why);
            effects.push(Effect::Sight(why));
        }
    }

    /// A complete feed was read. It lists what is being deleted; what it does not list any more, may be gone. A feed that lists nothing may
    /// be that of a cloud that does not let us see our groups.
    fn missed_in_feed(
        &mut self,
        now: Duration,
        run: &Run,
        since: Duration,
        seen: &HashSet<Arc<str>>,
        effects: &mut Vec<Effect>,
    ) {
        if seen.is_empty() || self.blind.is_some() {
            return;
        }
        let since = since + FEED_ROUNDING;
        let missed: Vec<_> = self
            .groups()
            .filter(|(_, group)| group.is_missed_in_feed(since) && !seen.contains(&group.group().id))
            .filter(|(_, group)| group.may_be_missing(run.begun, self.policy.consistency))
            .map(|(pod, group)| (Arc::clone(&pod.uid), Arc::clone(&group.group().id)))
            .collect();
        for (uid, id) in missed {
            self.with(now, &uid, effects, |groups, around| groups.absent(around, &id, false));
        }
    }

    /// Asks for what the lists do not show.
    fn read_details(&mut self, now: Duration, run: Run, effects: &mut Vec<Effect>) {
        let poll = PollRun { begun: run.begun, listed: run.listed, sweep: SWEEP };
        let mut coming = 0;
        let mut questions = Vec::new();
        for (_, group) in self.groups() {
            match group.inquiry(now, &poll) {
                Some(inquiry) => questions.push(Question { group: group.group().clone(), inquiry }),
                None => coming += usize::from(group.is_changing()),
            }
        }
        let unidentified = self.unidentified.values().filter(|one| one.ask_at <= now);
        questions.extend(unidentified.map(|one| {
            let inquiry = Inquiry { since: one.ask_at, urgent: true };
            Question { group: one.group.clone(), inquiry }
        }));
        let asked = collect(now, questions, coming, self.policy.detail_batch);
        self.next_details(now, run, asked, effects);
    }

    fn next_details(
        &mut self,
        now: Duration,
        mut run: Run,
        mut rest: VecDeque<GroupRef>,
        effects: &mut Vec<Effect>,
    ) {
        let count = rest.len().min(self.policy.detail_batch);
        let asked: Vec<GroupRef> = rest.drain(..count).collect();
        if asked.is_empty() {
            return self.run_ended(now, &run, effects);
        }
        run.stage = Stage::Details { asked: asked.clone(), rest };
        self.call(run, PollCall::Detail(asked), effects);
    }

    fn details_read(
        &mut self,
        now: Duration,
        asked: &[GroupRef],
        found: Vec<Observed>,
        effects: &mut Vec<Effect>,
    ) {
        let there: HashSet<Arc<str>> = found.iter().map(|one| Arc::clone(&one.group.id)).collect();
        for observed in found {
            self.sighted(now, observed, true, effects);
        }
        for group in asked {
            if let Some(one) = self.unidentified.get_mut(&group.id) {
                one.ask_at = now + ASK_AGAIN;
            }
            if there.contains(&group.id) || self.blind.is_some() {
                continue;
            }
            self.unidentified.remove(&group.id);
            if let Some(uid) = self.owners.get(&group.id).cloned() {
                self.with(now, &uid, effects, |groups, around| groups.absent(around, &group.id, true));
            }
        }
    }

    /// A page of a lookup was read.
    pub(super) fn looked_up(
        &mut self,
        now: Duration,
        id: crate::lifecycle::CallId,
        (uid, attempt, mut pages): (Arc<str>, u32, Pages),
        result: CallResult<Page>,
        effects: &mut Vec<Effect>,
    ) {
        let complete = match result {
            Ok(page) => match self.page_sighted(now, &mut pages, page, effects) {
                Progress::Next(token) => {
                    // The same id: the pod waits for the whole lookup.
                    self.calls.insert(id, Call::LookUp { uid: Arc::clone(&uid), attempt, pages });
                    let name = Some(identity::name(&uid, attempt).into());
                    let call = PollCall::Observe { name, page: Some(token) };
                    effects.push(Effect::Poll { id, call });
                    return;
                }
                Progress::End { complete, .. } => complete && self.blind.is_none(),
            },
            Err(_) => false,
        };
        self.with(now, &uid, effects, |groups, around| groups.looked_up(around, id, complete));
    }

    /// The cloud shows a group.
    fn sighted(&mut self, now: Duration, mut observed: Observed, by_id: bool, effects: &mut Vec<Effect>) {
        let id = Arc::clone(&observed.group.id);
        // A group that is certainly gone can be in lists for some time.
        if self.tombstones.contains_key(&id) && !by_id {
            return;
        }
        let Some((uid, attempt)) = self.identify(now, &observed) else { return };
        self.unidentified.remove(&id);
        self.owners.insert(Arc::clone(&id), Arc::clone(&uid));
        let events = std::mem::take(&mut observed.events);
        let malformed = std::mem::take(&mut observed.malformed);
        let changed =
            self.with(now, &uid, effects, |groups, around| groups.sighted(around, attempt, observed, by_id));
        let Some(pod) = self.pods.get(&uid).map(|groups| groups.pod().clone()) else { return };
        if !malformed.is_empty() {
            effects.push(Effect::Malformed(pod.clone(), malformed));
        }
        if !events.is_empty() {
            effects.push(Effect::Events(pod.clone(), events));
        }
        if changed == Some(true) {
            self.schedule.changed(now);
            effects.push(Effect::Changed(pod));
        }
    }

    /// The UID and attempt of a group of this node; `None` if it is not ours, or if that is not known yet.
    fn identify(&mut self, now: Duration, observed: &Observed) -> Option<(Arc<str>, u32)> {
        if let Some(owner) = &observed.owner {
            if !self.policy.scope.contains(owner) {
                return None;
            }
            let uid = &owner.pod.uid;
            let groups = || PodGroups::new(owner.pod.clone(), true);
            self.pods.entry(Arc::clone(uid)).or_insert_with(groups);
            return Some((Arc::clone(uid), owner.attempt));
        }
        let GroupRef { id, name } = &observed.group;
        if let Some(uid) = self.owners.get(id) {
            let groups = self.pods.get(uid)?.groups();
            let attempt = groups.iter().find(|group| group.group().id == *id).map_or(1, Group::attempt);
            return Some((Arc::clone(uid), attempt));
        }
        let (uid, attempt) = identity::parse_name(name)?;
        if let Some((uid, _)) = self.pods.get_key_value(&*uid) {
            return Some((Arc::clone(uid), attempt));
        }
        // Namespace and node are only in the tags.
        let group = observed.group.clone();
        let unidentified = || Unidentified { group, ask_at: now };
        self.unidentified.entry(Arc::clone(id)).or_insert_with(unidentified);
        None
    }
}

/// Whether nobody uses anything of the account: then there are no groups of ours either.
fn is_unused(health: &Health) -> bool {
    let none = vk_provider::Quantity::units(0);
    !health.quota.is_empty() && health.quota.iter().all(|usage| usage.used == none)
}
