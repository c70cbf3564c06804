//! The fake cloud as a backend.

use std::{fmt::Write as _, net::Ipv4Addr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Container;
use vk_provider::{
    Quantity,
    ability::{CpuStats, ExecOptions, Exit, MemoryStats, Session, Started},
};

use super::{FakeCloud, FakeGroup, Fault, State, group, refused};
use crate::backend::{
    Action, CallError, CallResult, Caps, Class, Creation, Deletion, GroupBackend, GroupRef, GroupStats,
    Health, Idempotency, LogRange, Observed, Page, Placement, Plan, Price, Rejection, ResolvedPod, Scope,
    Size, Update, Usage, Warning,
};
use crate::{identity, plan::size};

/// The annotation that lists the zones of a pod.
pub(super) const ZONES: &str = "fake/zones";

/// The fake cloud's request: names and images of the containers.
#[derive(Clone, Debug)]
pub struct FakeRequest(Vec<(String, String)>);

fn tags(tags: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    tags.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

impl FakeCloud {
    /// Applies the fault of a read.
    async fn read<T>(
        &self,
        action: Action,
        answer: impl FnOnce(&mut State, Timestamp) -> T,
    ) -> CallResult<T> {
        match self.0.faults.begin(action) {
            Some(Fault::Refused(class)) => Err(refused(class)),
            Some(Fault::AnswerLost | Fault::CarriedOutLater(_)) => Err(refused(Class::Ambiguous)),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Panics) => panic!("the fake cloud was told to panic"),
            None => Ok(answer(&mut self.0.state.lock(), self.now())),
        }
    }

    /// Applies the fault of a write.
    async fn write<T>(
        &self,
        action: Action,
        carry_out: impl Fn(&mut State, Timestamp) -> CallResult<T>,
    ) -> CallResult<T> {
        let fault = self.0.faults.begin(action);
        match fault {
            Some(Fault::Refused(class)) => Err(refused(class)),
            Some(Fault::AnswerLost) => {
                carry_out(&mut self.0.state.lock(), self.now())?;
                Err(refused(Class::Ambiguous))
            }
            Some(Fault::CarriedOutLater(later)) => {
                // Exists from then on, and is already seen by nobody before.
                let when = self.now() + signed(later);
                carry_out(&mut self.0.state.lock(), when)?;
                Err(refused(Class::Ambiguous))
            }
            Some(Fault::Hangs) => {
                carry_out(&mut self.0.state.lock(), self.now())?;
                std::future::pending().await
            }
            Some(Fault::Panics) => {
                carry_out(&mut self.0.state.lock(), self.now())?;
                panic!("the fake cloud was told to panic");
            }
            None => carry_out(&mut self.0.state.lock(), self.now()),
        }
    }

    /// Applies the fault of a page.
    fn page(&self, scope: &Scope, token: Option<&str>, mut page: Page) -> CallResult<Page> {
        let faults = &self.0.faults;
        if scope.name.is_none() {
            let number = faults.begin_page(token)?;
            faults.end_page(number, token, &mut page);
        }
        faults.filter(&mut page);
        Ok(page)
    }

    fn list(
        state: &State,
        now: Timestamp,
        scope: &Scope,
        page: Option<&str>,
        feed: Option<Duration>,
    ) -> Page {
        if !state.behavior.visible {
            return Page::default();
        }
        let then = now - signed(state.behavior.lag);
        let since = feed.map(|before| now - signed(before));
        let mut shown: Vec<&FakeGroup> = state
            .groups
            .iter()
            .filter(|one| one.exists(then) && scope.contains(&one.owner))
            .filter(|one| scope.name.as_ref().is_none_or(|name| *name == one.group.name))
            .filter(|one| since.is_none_or(|since| one.changed_since(since)))
            .collect();
        shown.sort_by(|a, b| a.id().cmp(b.id()));
        let mut rest = shown.into_iter().filter(|one| page.is_none_or(|page| **one.id() > *page));
        let taken: Vec<&FakeGroup> = rest.by_ref().take(state.behavior.page).collect();
        let more = rest.next().is_some();
        let next = taken.last().filter(|_| more).map(|one| one.id().to_string());
        // The feed of this cloud shows neither tags nor reasons, and its list all there is.
        let groups = taken.iter().map(|one| {
            let observed = state.observed(one, then);
            if feed.is_none() {
                return observed;
            }
            let (owner, reason, message) = (None, None, None);
            Observed { owner, complete: false, preempted: false, reason, message, ..observed }
        });
        Page { groups: groups.collect(), next, incomplete: false }
    }
}

#[async_trait]
impl GroupBackend for FakeCloud {
    type Request = FakeRequest;

    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn translate(&self, pod: &ResolvedPod) -> Result<Plan<FakeRequest>, Rejection> {
        let mut rejection = Rejection::default();
        let spec = pod.pod.spec.clone().unwrap_or_default();
        if spec.host_network == Some(true) {
            rejection.push("spec.hostNetwork", "groups have a network of their own; remove it");
        }
        if spec.host_pid == Some(true) {
            rejection.push("spec.hostPID", "groups share nothing with a host; remove it");
        }
        let container = |one: &Container| (one.name.clone(), one.image.clone().unwrap_or_default());
        let mut plan = Plan::new(FakeRequest(spec.containers.iter().map(container).collect()));
        plan.size = Some(group::size(size::requested(&pod.pod).total.cpu));
        let zones = pod.pod.metadata.annotations.as_ref().and_then(|all| all.get(ZONES));
        plan.placements = zones
            .iter()
            .flat_map(|zones| zones.split(','))
            .map(|zone| Placement { zone: Some(zone.to_owned()), size: None })
            .collect();
        if spec.topology_spread_constraints.is_some() {
            let (field, message) = ("spec.topologySpreadConstraints".to_owned(), "ignored".to_owned());
            plan.warnings.push(Warning { field, message });
        }
        rejection.or(plan)
    }

    async fn create(&self, creation: &Creation<'_, FakeRequest>) -> CallResult<Option<GroupRef>> {
        let idempotency = self.0.caps.idempotency;
        self.write(Action::Create, |state, now| {
            let same = match idempotency {
                Idempotency::Token => state.tokens.get(creation.token).map(|group| Arc::clone(&group.id)),
                Idempotency::Name => Some(creation.name.into()),
                Idempotency::None => None,
            };
            let is_there = |one: &&mut FakeGroup| one.gone.is_none_or(|gone| now < gone);
            let found = state.groups.iter_mut().filter(is_there).find(|one| Some(one.id()) == same.as_ref());
            if let Some(one) = found {
                // The earlier request may not have been carried out yet.
                one.created = one.created.min(now);
                return Ok(Some(one.group.clone()));
            }
            let zone = creation.placement.and_then(|place| place.zone.clone());
            if zone.is_some_and(|zone| state.behavior.sold_out.contains(&zone)) {
                return Err(CallError::new(Class::OutOfStock, "NoStock"));
            }
            let live = state.groups.iter().filter(|one| one.is_live(now)).count();
            if state.behavior.quota.is_some_and(|quota| i64::try_from(live).unwrap_or(i64::MAX) >= quota) {
                return Err(CallError::new(Class::QuotaExceeded, "QuotaExceeded"));
            }
            let number = state.groups.len();
            let id = match idempotency {
                Idempotency::Name => creation.name.to_owned(),
                _ => format!("g{number:06}"),
            };
            let group = GroupRef::new(id, creation.name);
            state.tokens.insert(creation.token.to_owned(), group.clone());
            let bits = 0x0A00_0001 + u32::try_from(number).unwrap_or_default();
            state.groups.push(FakeGroup {
                group: group.clone(),
                tags: creation.tags.to_vec(),
                owner: creation.owner.clone(),
                containers: creation.plan.request.0.clone(),
                created: now,
                running: now + signed(state.behavior.start),
                deleting: None,
                gone: None,
                ended: None,
                preempted: false,
                events: Vec::new(),
                address: Ipv4Addr::from_bits(bits).into(),
                size: creation.plan.size.clone().unwrap_or_else(|| group::size(Quantity::units(1))),
                resized: None,
            });
            Ok(Some(group))
        })
        .await
    }

    async fn observe(&self, scope: &Scope, page: Option<&str>) -> CallResult<Page> {
        let all = self.read(Action::Observe, |state, now| Self::list(state, now, scope, page, None)).await?;
        self.page(scope, page, all)
    }

    async fn changes(&self, scope: &Scope, before: Duration, page: Option<&str>) -> CallResult<Page> {
        let list = |state: &mut State, now| Self::list(state, now, scope, page, Some(before));
        let mut page = self.read(Action::Changes, list).await?;
        self.0.faults.filter(&mut page);
        Ok(page)
    }

    async fn detail(&self, groups: &[GroupRef]) -> CallResult<Vec<Observed>> {
        assert!(groups.len() <= self.0.caps.detail_batch, "more groups than the batch allows");
        self.read(Action::Detail, |state, now| {
            let is_asked = |one: &&FakeGroup| groups.iter().any(|group| group.id == one.group.id);
            let found = state.groups.iter().filter(is_asked).filter(|one| one.exists(now));
            let found = found.filter(|_| state.behavior.visible);
            found.map(|one| state.observed(one, now)).collect()
        })
        .await
    }

    async fn delete(&self, group: &GroupRef, _grace: Duration) -> CallResult<Deletion> {
        self.write(Action::Delete, |state, now| {
            let stop = signed(state.behavior.stop);
            let found = state.groups.iter_mut().find(|one| one.group.id == group.id && one.exists(now));
            let Some(one) = found else { return Ok(Deletion::Gone) };
            if one.deleting.is_none() {
                one.deleting = Some(now);
                one.gone = Some(now + stop);
            }
            Ok(Deletion::Accepted)
        })
        .await
    }

    async fn probe(&self) -> CallResult<Health> {
        self.read(Action::Probe, |state, now| {
            let limit = state.behavior.quota.map(Quantity::units);
            let used = Self::used(state, now);
            let usage = |resource: &str| Usage { resource: resource.to_owned(), used, limit };
            Health { quota: vec![usage("cpu"), usage("pods")] }
        })
        .await
    }

    async fn logs(&self, group: &GroupRef, container: &str, range: &LogRange) -> CallResult<Bytes> {
        let limit = self.0.caps.logs.map_or(0, |limits| limits.lines);
        self.read(Action::Logs, |state, now| {
            let owner = state.groups.iter().find(|one| one.group.id == group.id && one.exists(now));
            let Some(owner) = owner else { return Err(refused(Class::NotFound)) };
            let key = (owner.owner.pod.name.to_string(), container.to_owned());
            let all = state.logs.get(&key).map(Vec::as_slice).unwrap_or_default();
            let lines: Vec<_> =
                all.iter().filter(|(time, _)| range.since.is_none_or(|since| *time >= since)).collect();
            let most = usize::try_from(range.tail.unwrap_or(limit).min(limit)).unwrap_or(usize::MAX);
            let mut text = String::new();
            for (time, line) in &lines[lines.len().saturating_sub(most)..] {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{time} {line}");
            }
            Ok(Bytes::from(text))
        })
        .await?
    }

    async fn exec(
        &self,
        _group: &GroupRef,
        _container: &str,
        command: &[String],
        _options: &ExecOptions,
    ) -> CallResult<Started> {
        let output = command.join(" ").into_bytes();
        self.read(Action::Exec, |_, _| {
            Started::Session(Session {
                stdin: None,
                stdout: Some(Box::new(std::io::Cursor::new(output))),
                stderr: None,
                resize: None,
                exit: Box::pin(async { Ok(Exit { code: 0 }) }),
            })
        })
        .await
    }

    async fn stats(&self, groups: &[GroupRef]) -> CallResult<Vec<GroupStats>> {
        self.read(Action::Stats, |_, time| {
            let stats = |group: &GroupRef| GroupStats {
                group: group.clone(),
                containers: Vec::new(),
                cpu: Some(CpuStats {
                    time,
                    usage_nano_cores: Some(1000),
                    usage_core_nano_seconds: Some(5000),
                }),
                memory: Some(MemoryStats {
                    time,
                    available_bytes: None,
                    usage_bytes: None,
                    working_set_bytes: Some(1 << 20),
                    rss_bytes: None,
                    page_faults: None,
                    major_page_faults: None,
                }),
                network: None,
            };
            groups.iter().map(stats).collect()
        })
        .await
    }

    async fn update(&self, group: &GroupRef, update: &Update<'_, FakeRequest>) -> CallResult<()> {
        self.write(Action::Update, |state, now| {
            let found = state.groups.iter_mut().find(|one| one.group.id == group.id && one.exists(now));
            let Some(one) = found else { return Err(refused(Class::NotFound)) };
            one.containers.clone_from(&update.plan.request.0);
            if let Some(owner) = identity::read_tags(tags(update.tags)) {
                one.owner = owner;
                one.tags = update.tags.to_vec();
            }
            one.resized = update.plan.size.clone().map(|size| (now + signed(state.behavior.start), size));
            Ok(())
        })
        .await
    }

    async fn price(&self, _size: &Size) -> CallResult<Option<Price>> {
        self.read(Action::Price, |state, _| state.price.clone()).await
    }
}
