//! One simulated container: its spec and its state.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};

use super::usage::UsageCounter;

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Runs once, before the regular ones.
    Init,
    /// Starts with the init containers and keeps running beside the regular ones.
    Sidecar,
    Regular,
    Ephemeral,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// The parts of a pod's spec that the simulation needs. The spec itself is much larger, and there may be thousands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodOutline {
    /// All containers of the pod: init, regular, ephemeral. Only the last group can grow, so indexes are stable.
    pub(super) containers: Box<[ContainerSpec]>,
    /// `activeDeadlineSeconds`.
    pub(super) deadline: Option<i64>,
}

/// The needed parts of a container's spec.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ContainerSpec {
    pub(super) role: Role,
    pub(super) name: Box<str>,
    pub(super) image: Box<str>,
    pub(super) resources: Option<Box<ResourceRequirements>>,
    pub(super) restart: RestartPolicy,
}

/// The state of a container.
#[derive(Clone, Debug)]
pub(super) struct SimulatedContainer {
    pub(super) state: State,
    pub(super) restarts: i32,
    /// How the previous instance ended.
    pub(super) last: Option<Ended>,
    pub(super) meter: UsageCounter,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// Starts at this time; `None` while it waits for others.
    Waiting {
        until: Option<Timestamp>,
    },
    Running {
        since: Timestamp,
        ready: bool,
        ready_at: Timestamp,
        /// When it ends without being stopped, and with which code.
        ends: Option<(Timestamp, i32)>,
    },
    Ended(Ended),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// `None` if it never started.
    pub(super) started: Option<Timestamp>,
    pub(super) at: Timestamp,
    pub(super) code: i32,
}

// === impl RestartPolicy ===

impl RestartPolicy {
    fn named(name: Option<&str>) -> Option<Self> {
        match name? {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }

    pub(super) fn of(pod: &Pod) -> Self {
        let name = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        Self::named(name).unwrap_or(Self::Always)
    }

    pub(super) fn restarts(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

// === impl PodOutline ===

impl PodOutline {
    pub(super) fn of(pod: &Pod) -> Self {
        let policy = RestartPolicy::of(pod);
        let spec = pod.spec.as_ref();
        let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let regular = spec.into_iter().flat_map(|spec| &spec.containers);
        let ephemeral = spec.into_iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        let init = init.map(|container| {
            let own = RestartPolicy::named(container.restart_policy.as_deref());
            let (role, restart) = match (own, policy) {
                (Some(RestartPolicy::Always), _) => (Role::Sidecar, RestartPolicy::Always),
                (Some(own), _) => (Role::Init, own),
                (None, RestartPolicy::Never) => (Role::Init, RestartPolicy::Never),
                // An init container that has succeeded is not restarted, whatever the pod's policy.
                (None, _) => (Role::Init, RestartPolicy::OnFailure),
            };
            ContainerSpec::new(
                role,
                restart,
                &container.name,
                container.image.as_deref(),
                container.resources.as_ref(),
            )
        });
        let regular = regular.map(|container| {
            let restart = RestartPolicy::named(container.restart_policy.as_deref()).unwrap_or(policy);
            let (image, resources) = (container.image.as_deref(), container.resources.as_ref());
            ContainerSpec::new(Role::Regular, restart, &container.name, image, resources)
        });
        let ephemeral = ephemeral.map(|container| {
            let image = container.image.as_deref();
            ContainerSpec::new(Role::Ephemeral, RestartPolicy::Never, &container.name, image, None)
        });
        Self {
            containers: init.chain(regular).chain(ephemeral).collect(),
            deadline: spec.and_then(|spec| spec.active_deadline_seconds),
        }
    }

    /// The number of containers that are not ephemeral.
    pub(super) fn lasting(&self) -> usize {
        self.containers.iter().filter(|spec| spec.role != Role::Ephemeral).count()
    }
}

// === impl ContainerSpec ===

impl ContainerSpec {
    fn new(
        role: Role,
        restart: RestartPolicy,
        name: &str,
        image: Option<&str>,
        resources: Option<&ResourceRequirements>,
    ) -> Self {
        let resources = resources.cloned().map(Box::new);
        Self { role, name: name.into(), image: image.unwrap_or_default().into(), resources, restart }
    }
}

// === impl SimulatedContainer ===

impl SimulatedContainer {
    pub(super) fn new() -> Self {
        Self {
            state: State::Waiting { until: None },
            restarts: 0,
            last: None,
            meter: UsageCounter::default(),
        }
    }

    /// Whether an instance has been started.
    pub(super) fn has_started(&self) -> bool {
        match self.state {
            State::Waiting { .. } => self.last.is_some(),
            State::Running { .. } => true,
            State::Ended(ended) => ended.started.is_some(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Running { ready: true, .. })
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        match self.state {
            State::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// Ends the container: a running one with this code, a waiting one with the state of its last instance.
    pub(super) fn end(&mut self, at: Timestamp, code: i32) {
        match self.state {
            State::Running { since, .. } => {
                self.state = State::Ended(Ended { started: Some(since), at, code });
                self.meter.stop(at);
            }
            State::Waiting { .. } => {
                let never = Ended { started: None, at, code: 137 };
                self.state = State::Ended(self.last.take().unwrap_or(never));
            }
            State::Ended(_) => {}
        }
    }

    /// Schedules a restart of a running or ended container.
    pub(super) fn restart(&mut self, now: Timestamp, then: Timestamp) {
        self.end(now, 0);
        self.last = self.ended();
        self.state = State::Waiting { until: Some(then) };
    }
}
