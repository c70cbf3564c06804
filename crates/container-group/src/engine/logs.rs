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
    backend::{Action, CallResult, Class, ContainerState, GroupRef, LogLimits, LogRange, ObservedContainer},
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
        previous: options.previous,
        timestamps: options.timestamps,
        left: options.limit_bytes,
        restarts: seen.and_then(|seen| seen.restarts),
        queued: VecDeque::new(),
        following: options.follow && !options.previous,
    };
    let first = follower.read(options.tail).await;
    let lines = first.map_err(|error| error.for_operation(&format!("read the log of {container}")))?;
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
    let mut all = observed.containers.iter().chain(&observed.init_containers).flatten();
    all.find(|one| one.name == container.container).cloned()
}

/// Reads a log to its end, and on while the container runs.
struct Follower<B: GroupBackend> {
    context: Arc<EngineContext<B>>,
    container: ContainerRef,
    group: GroupRef,
    limits: LogLimits,
    tail: LogTail,
    since: Option<Timestamp>,
    previous: bool,
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
            let runs = self.is_running();
            tokio::time::sleep(POLL).await;
            match self.read(None).await {
                Ok(lines) => {
                    self.queued.extend(lines);
                    self.following = runs;
                }
                Err(error) if error.class == Class::NotFound => return None,
                Err(error) if matches!(error.class, Class::Denied | Class::Invalid | Class::Unsupported) => {
                    self.following = false;
                    return Some(Err(io::Error::other(error)));
                }
                Err(_) => tokio::time::sleep(POLL_AFTER_FAILURE).await,
            }
        }
    }

    /// Lines that were not read before.
    async fn read(&mut self, tail: Option<u64>) -> CallResult<Vec<Line>> {
        let range = LogRange {
            tail: Some(tail.map_or(self.limits.lines, |tail| tail.min(self.limits.lines))),
            since: self.tail.last_time().or(self.since),
            previous: self.previous,
        };
        let call = self.context.backend.logs(&self.group, &self.container.container, &range);
        let text = self.context.call(Action::Logs, call).await?;
        let lines = parse(&text, self.limits.stamped);
        let full = lines.len() as u64 >= self.limits.lines || text.len() as u64 >= self.limits.bytes;
        Ok(self.tail.new_lines(lines, full))
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

    /// Whether the instance of the container whose log was opened may still write.
    fn is_running(&self) -> bool {
        let gone = {
            let state = self.context.state.lock();
            match state.reconciler.view(&self.container.pod.uid) {
                PodView::Present(group) => group.has_ended() || *group.group() != self.group,
                PodView::Absent => true,
                PodView::Creating | PodView::Unclear => false,
            }
        };
        if gone {
            return false;
        }
        observed(&self.context, &self.container).is_none_or(|seen| {
            let ended = matches!(seen.state, Some(ContainerState::Terminated(_)));
            !ended && seen.restarts == self.restarts
        })
    }
}
