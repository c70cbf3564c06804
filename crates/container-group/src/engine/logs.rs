//! Container logs. Clouds cannot follow a log: it is read again and again, and what was read before is dropped.

mod tail;

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use vk_provider::{
    ContainerRef, Error, Result,
    ability::{LogBody, LogOptions, Output, Since},
    error::Kind,
};

use self::tail::{Line, LogTail, parse};
use super::context::EngineContext;
use crate::{
    GroupBackend,
    backend::{
        Action, CallResult, Class, ContainerState, GroupRef, LogLimits, LogRange, Observed, ObservedContainer,
    },
    reconciler::PodView,
};

/// How often a log that is followed is read.
const POLL: Duration = Duration::from_secs(2);
/// The same after a failure.
const POLL_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Opens a log.
pub(super) async fn open<B: GroupBackend>(
    context: &Arc<EngineContext<B>>,
    container: &ContainerRef,
    group: &GroupRef,
    options: &LogOptions,
) -> Result<LogBody> {
    let Some(limits) = context.backend.caps().logs else {
        return Err(Error::new(Kind::Unsupported, "this cloud has no container logs"));
    };
    if options.output != Output::All {
        return Err(Error::new(Kind::Unsupported, "this cloud does not keep stdout and stderr apart"));
    }
    if !limits.stamped && (options.timestamps || options.since.is_some()) {
        return Err(Error::new(Kind::Unsupported, "this cloud does not know the times of log lines"));
    }
    let seen = observed(context, container);
    check(container, seen.as_ref(), options, limits)?;
    let since = options.since.map(|since| match since {
        Since::Time(time) => time,
        Since::Ago(ago) => {
            let ago = SignedDuration::try_from(ago).unwrap_or(SignedDuration::MAX);
            context.clock.now().checked_sub(ago).unwrap_or(Timestamp::UNIX_EPOCH)
        }
    });
    let mut follower = Follower {
        context: Arc::clone(context),
        container: container.clone(),
        group: group.clone(),
        limits,
        tail: LogTail::new(limits),
        since,
        timestamps: options.timestamps,
        left: options.limit_bytes,
        restarts: seen.and_then(|seen| seen.restarts),
        queued: VecDeque::new(),
        following: options.follow && !options.previous,
    };
    let first = follower.fetch(options.tail, options.previous).await;
    let (lines, full) =
        first.map_err(|error| error.for_operation(&format!("read the log of {container}")))?;
    let lines = follower.tail.new_lines(lines, full);
    let lines =
        lines.into_iter().filter(|line| line.time.zip(since).is_none_or(|(time, since)| time >= since));
    let lines: Vec<Line> = lines.collect();
    let keep = options.tail.map_or(lines.len(), |tail| usize::try_from(tail).unwrap_or(usize::MAX));
    let skip = lines.len().saturating_sub(keep);
    follower.queued.extend(lines.into_iter().skip(skip));
    let stream = stream::unfold(follower, |mut follower| async move {
        let chunk = follower.next().await?;
        Some((chunk, follower))
    });
    Ok(LogBody::Final(stream.boxed()))
}

/// Whether the requested log exists.
fn check(
    container: &ContainerRef,
    seen: Option<&ObservedContainer>,
    options: &LogOptions,
    limits: LogLimits,
) -> Result<()> {
    let (name, pod) = (&container.container, &container.pod.name);
    if options.previous {
        if !limits.previous {
            return Err(Error::new(Kind::Unsupported, "this cloud does not keep logs of earlier instances"));
        }
        let known =
            seen.is_none_or(|seen| seen.previous.is_some() || seen.restarts.is_some_and(|count| count > 0));
        if !known {
            let text = format!("previous terminated container {name:?} in pod {pod:?} not found");
            return Err(Error::not_found(text));
        }
        return Ok(());
    }
    let Some(seen) = seen else { return Ok(()) };
    if let (Some(ContainerState::Waiting { reason, .. }), None) = (&seen.state, &seen.previous) {
        let reason = reason.as_deref().unwrap_or("ContainerCreating");
        return Err(Error::unavailable(format!(
            "container {name:?} in pod {pod:?} is waiting to start: {reason}"
        )));
    }
    Ok(())
}

fn observed<B: GroupBackend>(
    context: &EngineContext<B>,
    container: &ContainerRef,
) -> Option<ObservedContainer> {
    let state = context.state.lock();
    let observed = state.reconciler.observed(&container.pod.uid)?;
    container_of(observed, &container.container).cloned()
}

fn container_of<'a>(observed: &'a Observed, name: &str) -> Option<&'a ObservedContainer> {
    let mut all = observed.containers.iter().chain(&observed.init_containers).flatten();
    all.find(|one| one.name == name)
}

/// An instance of a container: what runs between two restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instance {
    /// It is the current one, and may still write.
    Current,
    /// It has ended.
    Ended,
    /// The container was restarted, or will be soon; `next` if once.
    Replaced { next: bool },
}

/// Reads a log to its end, and on while the container runs.
struct Follower<B: GroupBackend> {
    context: Arc<EngineContext<B>>,
    container: ContainerRef,
    group: GroupRef,
    limits: LogLimits,
    tail: LogTail,
    since: Option<Timestamp>,
    timestamps: bool,
    /// The bytes that may still be sent.
    left: Option<u64>,
    /// The restarts of the container when the log was opened.
    restarts: Option<i32>,
    queued: VecDeque<Line>,
    following: bool,
}

// === impl Follower ===

impl<B: GroupBackend> Follower<B> {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if self.left == Some(0) {
                return None;
            }
            if !self.queued.is_empty() {
                return Some(Ok(self.take_queued()));
            }
            if !self.following {
                return None;
            }
            // Whether it runs is asked before the last read, so that nothing that it wrote is lost.
            let before = self.instance();
            tokio::time::sleep(POLL).await;
            match self.read_on(before).await {
                Ok(()) => {}
                Err(error) if error.class == Class::NotFound => return None,
                Err(error) if matches!(error.class, Class::Denied | Class::Invalid | Class::Unsupported) => {
                    self.following = false;
                    return Some(Err(io::Error::other(error)));
                }
                Err(_) => tokio::time::sleep(POLL_AFTER_FAILURE).await,
            }
        }
    }

    /// Reads what the instance has written since the last read. `before` is what was known of it before.
    async fn read_on(&mut self, before: Instance) -> CallResult<()> {
        let (lines, full) = self.fetch(None, false).await?;
        let continues = self.tail.continues(&lines);
        // What does not continue the log may be the log of the next instance. Polls notice a restart only later.
        let instance = if continues || lines.is_empty() { before } else { self.ask().await? };
        let Instance::Replaced { next } = instance else {
            self.queued.extend(self.tail.new_lines(lines, full));
            self.following = instance == Instance::Current;
            return Ok(());
        };
        if continues {
            self.queued.extend(self.tail.new_lines(lines, full));
        } else if self.limits.previous {
            let (rest, full) = self.fetch(None, true).await?;
            // After two restarts it is the log of another instance.
            if next || self.tail.continues(&rest) {
                self.queued.extend(self.tail.new_lines(rest, full));
            }
        }
        self.following = false;
        Ok(())
    }

    /// The lines since the last read, and whether the cloud has cut off what did not fit.
    async fn fetch(&self, tail: Option<u64>, previous: bool) -> CallResult<(Vec<Line>, bool)> {
        let most = self.limits.lines;
        // A log that is followed goes on from its last line: at least one has to be read. Without times it goes on where two answers
        // overlap, so that they have to be equally long.
        let tail = tail.filter(|_| self.limits.stamped).map_or(most, |tail| tail.min(most).max(1));
        let since = self.tail.last_time().or(self.since);
        let range = LogRange { tail: Some(tail), since, previous };
        let call = self.context.backend.logs(&self.group, &self.container.container, &range);
        let text = self.context.call(Action::Logs, call).await?;
        let lines = parse(&text, self.limits.stamped);
        let full = lines.len() as u64 >= most || text.len() as u64 >= self.limits.bytes;
        Ok((lines, full))
    }

    fn take_queued(&mut self) -> Bytes {
        let mut chunk = Vec::new();
        for line in self.queued.drain(..) {
            if let Some(time) = line.time.filter(|_| self.timestamps) {
                chunk.extend_from_slice(time.to_string().as_bytes());
                chunk.push(b' ');
            }
            chunk.extend_from_slice(&line.text);
            chunk.push(b'\n');
        }
        if let Some(left) = &mut self.left {
            chunk.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= chunk.len() as u64;
        }
        Bytes::from(chunk)
    }

    /// What is known of the instance whose log was opened.
    fn instance(&self) -> Instance {
        let gone = {
            let state = self.context.state.lock();
            match state.reconciler.view(&self.container.pod.uid) {
                PodView::Present(group) => group.has_ended() || *group.group() != self.group,
                PodView::Absent => true,
                PodView::Creating | PodView::Unclear => false,
            }
        };
        if gone { Instance::Ended } else { self.compare(observed(&self.context, &self.container).as_ref()) }
    }

    /// The same, from the cloud.
    async fn ask(&self) -> CallResult<Instance> {
        let groups = [self.group.clone()];
        let found = self.context.call(Action::Detail, self.context.backend.detail(&groups)).await?;
        let group = found.iter().find(|observed| observed.group.id == self.group.id);
        let name = &self.container.container;
        Ok(group.map_or(Instance::Ended, |observed| self.compare(container_of(observed, name))))
    }

    fn compare(&self, seen: Option<&ObservedContainer>) -> Instance {
        let Some(seen) = seen else { return Instance::Current };
        match self.restarts.zip(seen.restarts) {
            Some((opened, now)) if opened != now => {
                Instance::Replaced { next: opened.checked_add(1) == Some(now) }
            }
            _ if matches!(seen.state, Some(ContainerState::Terminated(_))) => Instance::Ended,
            _ => Instance::Current,
        }
    }
}
