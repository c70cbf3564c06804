//! Logs: a few lines when a container starts, one a second while it runs, one when it ends.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};
use vk_provider::{
    ContainerRef, Error, Result,
    ability::{LogBody, LogOptions, LogStream, Logs, Output},
    error::Kind,
};
use vk_supervisor::Clock;

use super::container_status;
use crate::{
    connection::HostConnection,
    fault::Call,
    mock::Mock,
    time::{after, between},
};

/// Seconds of log lines that are kept, as if older ones had been rotated away.
const KEPT_SECONDS: u64 = 100;

/// One instance of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    name: String,
    image: String,
    restarts: i32,
    started: Timestamp,
    ended: Option<(Timestamp, i32)>,
}

/// A line, and when it was written.
pub(super) struct Line {
    at: Timestamp,
    pub(super) text: String,
}

/// A followed log.
struct Follower {
    connection: Arc<HostConnection>,
    clock: Clock,
    container: ContainerRef,
    instance: Instance,
    waiting: VecDeque<Line>,
    /// The second up to which lines have been produced.
    seconds: u64,
}

#[async_trait]
impl Logs for Mock {
    async fn open(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody> {
        let guard = self.0.faults.enter(Call::Logs).await?;
        guard.finish(self.log(container, options).await)
    }
}

impl Mock {
    async fn log(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody> {
        let status = container_status(&self.0.connection, container).await?;
        let stamp = |line: Line| Ok(Bytes::from(format!("{} {}\n", line.at, line.text)));
        let instance = if options.previous {
            Instance::previous(&status)
                .ok_or_else(|| Error::not_found(format!("{container} has no earlier instance")))?
        } else {
            Instance::current(&status)
                .ok_or_else(|| Error::unavailable(format!("{container} has not started yet")))?
        };
        let stream: LogStream = if options.output == Output::Stderr {
            // All lines are written to standard output.
            stream::empty().boxed()
        } else if options.follow {
            self.follow(container, instance).map(move |line| line.and_then(stamp)).boxed()
        } else {
            let lines = instance.lines(0, self.0.clock.now());
            stream::iter(lines.into_iter().map(stamp)).boxed()
        };
        Ok(LogBody::Stamped(stream))
    }

    /// The log of an instance until it has ended.
    pub(super) fn follow(
        &self,
        container: &ContainerRef,
        instance: Instance,
    ) -> stream::BoxStream<'static, io::Result<Line>> {
        let now = self.0.clock.now();
        let follower = Follower {
            connection: Arc::clone(&self.0.connection),
            clock: self.0.clock.clone(),
            container: container.clone(),
            waiting: instance.lines(0, now).into(),
            seconds: instance.seconds(now),
            instance,
        };
        stream::try_unfold(follower, |mut follower| async move {
            Ok(follower.next().await?.map(|line| (line, follower)))
        })
        .boxed()
    }
}

// === impl Follower ===

impl Follower {
    async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.waiting.pop_front() {
                return Ok(Some(line));
            }
            if self.instance.ended.is_some() {
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            let status = match container_status(&self.connection, &self.container).await {
                Ok(status) => status,
                Err(error) if *error.kind() == Kind::NotFound => return Ok(None),
                Err(error) => return Err(io::Error::other(error)),
            };
            let found = [Instance::current(&status), Instance::previous(&status)];
            let same = found.into_iter().flatten().find(|found| found.restarts == self.instance.restarts);
            let Some(instance) = same else { return Ok(None) };
            let now = self.clock.now();
            self.instance.ended = instance.ended;
            self.waiting = self.instance.lines(self.seconds + 1, now).into();
            self.seconds = self.instance.seconds(now);
        }
    }
}

// === impl Instance ===

impl Instance {
    /// The newest instance: the running one, or the one that ended last.
    pub(super) fn current(status: &ContainerStatus) -> Option<Self> {
        let state = status.state.as_ref()?;
        if state.waiting.is_some() {
            let last = status.last_state.as_ref()?;
            return Self::of(status, last, status.restart_count);
        }
        Self::of(status, state, status.restart_count)
    }

    /// The instance before the newest one.
    fn previous(status: &ContainerStatus) -> Option<Self> {
        let last = status.last_state.as_ref()?;
        if status.state.as_ref()?.waiting.is_some() {
            return Self::of(status, last, status.restart_count);
        }
        Self::of(status, last, status.restart_count - 1)
    }

    fn of(status: &ContainerStatus, state: &ContainerState, restarts: i32) -> Option<Self> {
        let (started, ended) = match (&state.running, &state.terminated) {
            (Some(running), _) => (running.started_at.as_ref()?.0, None),
            (None, Some(terminated)) => {
                let at = terminated.finished_at.as_ref()?.0;
                (terminated.started_at.as_ref()?.0, Some((at, terminated.exit_code)))
            }
            (None, None) => return None,
        };
        let (name, image) = (status.name.clone(), status.image.clone());
        Some(Self { name, image, restarts, started, ended })
    }

    /// How long it has run, in seconds.
    fn seconds(&self, now: Timestamp) -> u64 {
        between(self.started, self.ended.map_or(now, |(at, _)| at.min(now))).as_secs()
    }

    /// Its lines from this second on. Second 0 has the lines of the start.
    fn lines(&self, from: u64, now: Timestamp) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut add = |at, text| lines.push(Line { at, text });
        if from == 0 {
            add(self.started, format!("starting {} (restart {})", self.name, self.restarts));
            add(self.started, format!("image {}", self.image));
            add(self.started, format!("{} is up", self.name));
        }
        let seconds = self.seconds(now);
        for second in from.max(seconds.saturating_sub(KEPT_SECONDS)).max(1)..=seconds {
            add(after(self.started, Duration::from_secs(second)), format!("{} tick {second}", self.name));
        }
        if let Some((at, code)) = self.ended {
            add(at, format!("{} exits with {code}", self.name));
        }
        lines
    }
}
