//! What a cloud can do, and its limits.

use std::{collections::BTreeMap, time::Duration};

/// What a cloud can do, and its limits. Start from [`Caps::default`], which promises nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// Who chooses the id of a group.
    pub naming: Naming,
    /// How the cloud recognises a repeated create.
    pub idempotency: Idempotency,
    /// How long after a change the cloud's lists may still show the state before it; also after a call that was given up, and may have been
    /// carried out later. Calls for a group by its id are always up to date, but for a group that is younger than this.
    pub consistency: Duration,
    /// Whether the cloud has a feed of changes: [`GroupBackend::changes`](super::GroupBackend::changes).
    pub feed: bool,
    /// The maximum number of groups in a [`GroupBackend::detail`](super::GroupBackend::detail); at least 1.
    pub detail_batch: usize,
    /// The maximum number of groups in a [`GroupBackend::stats`](super::GroupBackend::stats); `None` if the cloud has no figures.
    pub stats_batch: Option<usize>,
    /// Limits of tags.
    pub tags: TagLimits,
    /// Container logs, if the cloud has them.
    pub logs: Option<LogLimits>,
    /// Commands in containers, if the cloud runs them.
    pub exec: Option<ExecLimits>,
    /// What can be changed in a running group.
    pub updates: Updates,
    /// The cloud's own limits by action; the budget never exceeds them. An action that is not listed has only the limit for all calls.
    pub rates: BTreeMap<Action, Rate>,
    /// How long a call may take before it is dropped. Its outcome is then unknown.
    pub deadline: Duration,
}

/// Who chooses the id of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The engine: its name is the id, and two groups with one name cannot exist.
    Chosen,
    /// The cloud: two groups may have one name.
    Assigned,
}

/// How the cloud recognises a repeated create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotency {
    /// By the token of the request: the same token returns the same group.
    Token,
    /// By the name of the group: the same name is the same group.
    Name,
    /// Not at all: a repeated create makes another group.
    None,
}

/// Limits of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagLimits {
    /// The maximum number of tags of a group.
    pub count: usize,
    /// The maximum number of characters in a key.
    pub key: usize,
    /// The maximum number of characters in a value.
    pub value: usize,
}

/// What the cloud's logs contain at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// The maximum number of lines of a call.
    pub lines: u64,
    /// The maximum number of bytes of a call.
    pub bytes: u64,
    /// Whether each line begins with its time.
    pub stamped: bool,
    /// Whether the log of the previous instance can be read.
    pub previous: bool,
}

/// Limits of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecLimits {
    /// The maximum number of arguments, the command included.
    pub arguments: usize,
    /// The maximum number of characters in each.
    pub characters: usize,
}

/// What can be changed in a running group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updates {
    /// The images of containers.
    pub images: bool,
    /// The resources of containers.
    pub resources: bool,
    /// The files of volumes.
    pub files: bool,
}

/// What a call does: for budgets and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// [`GroupBackend::create`](super::GroupBackend::create).
    Create,
    /// [`GroupBackend::observe`](super::GroupBackend::observe).
    Observe,
    /// [`GroupBackend::changes`](super::GroupBackend::changes).
    Changes,
    /// [`GroupBackend::detail`](super::GroupBackend::detail).
    Detail,
    /// [`GroupBackend::delete`](super::GroupBackend::delete).
    Delete,
    /// [`GroupBackend::probe`](super::GroupBackend::probe).
    Probe,
    /// [`GroupBackend::logs`](super::GroupBackend::logs).
    Logs,
    /// [`GroupBackend::exec`](super::GroupBackend::exec).
    Exec,
    /// [`GroupBackend::stats`](super::GroupBackend::stats).
    Stats,
    /// [`GroupBackend::update`](super::GroupBackend::update).
    Update,
    /// [`GroupBackend::price`](super::GroupBackend::price).
    Price,
}

/// A rate of calls: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Calls per second in the long run.
    pub per_second: f64,
    /// Calls at once after a rest; at least 1.
    pub burst: f64,
}

// === impl Caps ===

impl Default for Caps {
    fn default() -> Self {
        Self {
            naming: Naming::Assigned,
            idempotency: Idempotency::None,
            consistency: Duration::from_secs(30),
            feed: false,
            detail_batch: 1,
            stats_batch: None,
            tags: TagLimits { count: 20, key: 64, value: 128 },
            logs: None,
            exec: None,
            updates: Updates::default(),
            rates: BTreeMap::new(),
            deadline: Duration::from_secs(30),
        }
    }
}

// === impl Action ===

impl Action {
    /// A stable name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Observe => "observe",
            Self::Changes => "changes",
            Self::Detail => "detail",
            Self::Delete => "delete",
            Self::Probe => "probe",
            Self::Logs => "logs",
            Self::Exec => "exec",
            Self::Stats => "stats",
            Self::Update => "update",
            Self::Price => "price",
        }
    }
}
