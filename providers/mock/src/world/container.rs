//! One container: what it is in its pod, and where it is in its life.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};

use super::meter::Meter;

/// The part that a container has in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Runs once, before the regular ones.
    Init,
    /// Starts with the init containers and runs beside the regular ones.
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

/// What the pod's spec says about a container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec<'a> {
    pub(super) role: Role,
    pub(super) name: &'a str,
    pub(super) image: &'a str,
    pub(super) resources: Option<&'a ResourceRequirements>,
    pub(super) restart: RestartPolicy,
}

/// Where a container is in its life.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) state: State,
    pub(super) restarts: i32,
    /// How the instance before this one ended.
    pub(super) last: Option<Ended>,
    pub(super) meter: Meter,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// Starts then; `None` waits for its turn.
    Waiting {
        until: Option<Timestamp>,
    },
    Running {
        since: Timestamp,
        ready: bool,
        ready_at: Timestamp,
        /// When and how it ends by itself.
        ends: Option<(Timestamp, i32)>,
    },
    Ended(Ended),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// `None` when it never started.
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

// === impl Spec ===

impl<'a> Spec<'a> {
    /// All containers of a pod: init, regular, ephemeral. Only the last group can grow, so an index stays what it is.
    pub(super) fn all(pod: &'a Pod) -> impl Iterator<Item = Self> {
        let policy = RestartPolicy::of(pod);
        let spec = pod.spec.as_ref();
        let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let regular = spec.into_iter().flat_map(|spec| &spec.containers);
        let ephemeral = spec.into_iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        let init = init.map(move |container| {
            let own = RestartPolicy::named(container.restart_policy.as_deref());
            let (role, restart) = match (own, policy) {
                (Some(RestartPolicy::Always), _) => (Role::Sidecar, RestartPolicy::Always),
                (Some(own), _) => (Role::Init, own),
                (None, RestartPolicy::Never) => (Role::Init, RestartPolicy::Never),
                // An init container that has succeeded is done, whatever the pod's policy.
                (None, _) => (Role::Init, RestartPolicy::OnFailure),
            };
            Spec {
                role,
                name: &container.name,
                image: container.image.as_deref().unwrap_or_default(),
                resources: container.resources.as_ref(),
                restart,
            }
        });
        let regular = regular.map(move |container| Spec {
            role: Role::Regular,
            name: &container.name,
            image: container.image.as_deref().unwrap_or_default(),
            resources: container.resources.as_ref(),
            restart: RestartPolicy::named(container.restart_policy.as_deref()).unwrap_or(policy),
        });
        let ephemeral = ephemeral.map(|container| Spec {
            role: Role::Ephemeral,
            name: &container.name,
            image: container.image.as_deref().unwrap_or_default(),
            resources: None,
            restart: RestartPolicy::Never,
        });
        init.chain(regular).chain(ephemeral)
    }
}

// === impl Container ===

impl Container {
    pub(super) fn new() -> Self {
        Self { state: State::Waiting { until: None }, restarts: 0, last: None, meter: Meter::default() }
    }

    /// Whether an instance of it has run or runs.
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

    /// Ends it, whatever it did: a running one with this code, a waiting one as its last instance ended.
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

    /// Lets a running or ended one start again then.
    pub(super) fn restart(&mut self, now: Timestamp, then: Timestamp) {
        self.end(now, 0);
        self.last = self.ended();
        self.state = State::Waiting { until: Some(then) };
    }
}
