//! A container group.

use jiff::Timestamp;
use serde_json::Value;

use super::{BillingRecord, Size};

/// Lines of a container's log that are kept.
const MAX_LINES: usize = 20_000;

/// The state of a group, as the API spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupStatus {
    Scheduling,
    ScheduleFailed,
    Pending,
    Running,
    Succeeded,
    Failed,
    Restarting,
    Updating,
    Terminating,
    Expired,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) signal: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerState {
    Waiting { reason: String, message: String },
    Running { started: Timestamp },
    Terminated { started: Timestamp, finished: Timestamp, outcome: Outcome },
}

#[derive(Clone, Debug)]
pub(crate) struct LogLine {
    pub(crate) at: Timestamp,
    pub(crate) text: String,
}

/// What a container uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Since its start.
    pub(crate) cpu_nanoseconds: u64,
    /// Now.
    pub(crate) nano_cores: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) measured: Option<Timestamp>,
}

/// A container of a group.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
    /// As the request has it.
    pub(crate) spec: Value,
    pub(crate) is_init: bool,
    pub(crate) state: ContainerState,
    pub(crate) previous: Option<ContainerState>,
    pub(crate) restarts: u32,
    pub(crate) is_ready: bool,
    /// The number of the current start.
    pub(crate) run: u64,
    pub(crate) log: Vec<LogLine>,
    pub(crate) previous_log: Vec<LogLine>,
    pub(crate) usage: Usage,
}

/// An event of a group.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) is_warning: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) count: u32,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// From the group's own agent, not from the service.
    pub(crate) is_of_agent: bool,
}

/// A container group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) uuid: String,
    /// As the request has it.
    pub(crate) spec: Value,
    pub(crate) status: GroupStatus,
    /// The state before `Terminating`, `Updating` or `Restarting`.
    pub(crate) before: GroupStatus,
    pub(crate) created: Timestamp,
    /// When its status changed last.
    pub(crate) changed: Timestamp,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) billed_to: Option<Timestamp>,
    pub(crate) started: Option<Timestamp>,
    /// It does not exist any more, but lists still show it.
    pub(crate) is_gone: bool,
    /// Lists do not show it before.
    pub(crate) listed_from: Timestamp,
    pub(crate) v_switch: String,
    pub(crate) zone: String,
    pub(crate) size: Size,
    pub(crate) instance_type: Option<String>,
    pub(crate) ip: Option<String>,
    pub(crate) ipv6: Option<String>,
    pub(crate) internet_ip: Option<String>,
    pub(crate) tags: Vec<(String, String)>,
    pub(crate) events: Vec<Event>,
    /// Init containers first.
    pub(crate) containers: Vec<Container>,
}

// === impl GroupStatus ===

impl GroupStatus {
    /// As the API spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Scheduling => "Scheduling",
            Self::ScheduleFailed => "ScheduleFailed",
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Restarting => "Restarting",
            Self::Updating => "Updating",
            Self::Terminating => "Terminating",
            Self::Expired => "Expired",
        }
    }

    pub(crate) fn is_ended(self) -> bool {
        matches!(self, Self::ScheduleFailed | Self::Succeeded | Self::Failed | Self::Expired)
    }

    /// The phase of the pod.
    pub(crate) fn phase(self) -> &'static str {
        match self {
            Self::Scheduling | Self::Pending => "Pending",
            Self::Running | Self::Restarting | Self::Updating | Self::Terminating => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed | Self::ScheduleFailed | Self::Expired => "Failed",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// The end by a code.
    pub(crate) fn exit(code: i32) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        Self { code, signal: 0, reason: reason.to_owned(), message: String::new() }
    }

    /// The end by a signal.
    pub(crate) fn signal(signal: i32) -> Self {
        Self { code: 128 + signal, signal, reason: "Error".to_owned(), message: String::new() }
    }
}

// === impl Container ===

impl Container {
    pub(crate) fn new(spec: &Value, is_init: bool) -> Self {
        let state =
            ContainerState::Waiting { reason: "ContainerCreating".to_owned(), message: String::new() };
        Self {
            name: spec["Name"].as_str().unwrap_or_default().to_owned(),
            spec: spec.clone(),
            is_init,
            state,
            previous: None,
            restarts: 0,
            is_ready: false,
            run: 0,
            log: Vec::new(),
            previous_log: Vec::new(),
            usage: Usage::default(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. })
    }

    /// The code with which it has ended.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        match &self.state {
            ContainerState::Terminated { outcome, .. } => Some(outcome.code),
            _ => None,
        }
    }

    pub(crate) fn append_log(&mut self, at: Timestamp, text: String) {
        if self.log.len() >= MAX_LINES {
            self.log.drain(..MAX_LINES / 10);
        }
        self.log.push(LogLine { at, text });
    }
}

// === impl Group ===

impl Group {
    pub(crate) fn name(&self) -> &str {
        self.text("ContainerGroupName")
    }

    /// A parameter of the request.
    pub(crate) fn text(&self, parameter: &str) -> &str {
        self.spec[parameter].as_str().unwrap_or_default()
    }

    pub(crate) fn restart_policy(&self) -> &str {
        self.spec["RestartPolicy"].as_str().unwrap_or("Always")
    }

    pub(crate) fn grace(&self) -> i64 {
        self.spec["TerminationGracePeriodSeconds"].as_i64().unwrap_or(30)
    }

    pub(crate) fn bill(&self) -> BillingRecord {
        BillingRecord {
            id: self.id.clone(),
            name: self.name().to_owned(),
            from: self.created,
            to: self.billed_to,
            cpu: self.size.cpu,
            memory: self.size.memory,
        }
    }

    pub(crate) fn container(&self, name: &str) -> Option<(usize, &Container)> {
        self.containers.iter().enumerate().find(|(_, container)| container.name == name)
    }

    pub(crate) fn push_event(&mut self, now: Timestamp, reason: &str, message: &str) {
        let is_warning = matches!(
            reason,
            "Failed"
                | "BackOff"
                | "NoStock"
                | "FailedScheduling"
                | "SpotToBeReleased"
                | "Unhealthy"
                | "DeadlineExceeded"
        );
        let same = self.events.iter_mut().find(|event| event.reason == reason && event.message == message);
        if let Some(event) = same {
            event.count += 1;
            event.last = now;
            return;
        }
        let number = self.events.len();
        self.events.push(Event {
            name: format!("{}.{:x}{number:02}", self.name(), self.created.as_second()),
            is_warning,
            reason: reason.to_owned(),
            message: message.to_owned(),
            count: 1,
            first: now,
            last: now,
            is_of_agent: !matches!(
                reason,
                "NoStock"
                    | "FailedScheduling"
                    | "SuccessfulHitImageCache"
                    | "SpotToBeReleased"
                    | "EciCreated"
            ),
        });
    }
}
