//! An engine on a fake runtime, with a paused clock.

use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, ContainerStatus, Pod, PodStatus, Secret, Service},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};
use vk_pod_engine::{Settings, engine::Engine, testing::FakeRuntime};
use vk_provider::{
    Changes, Error, PodBundle, PodChange, PodRef, Provider, Resolver, Result,
    error::Kind,
    resolve::{
        Claim, CommandLine, ContainerInputs, Facts, FileSet, NodeFacts, Origin, PullCredentials, Reference,
        ReferenceKind, Token, TokenLifetime, TokenRequest, Variable,
    },
};
use vk_supervisor::{Clock, Supervisor};

pub(crate) const NODE: &str = "node-1";
/// A timeout that is reached only if something is broken, because the clock is paused.
pub(crate) const LIMIT: Duration = Duration::from_mins(30);

/// A runtime, and an engine on it that can be replaced by the next process's.
pub(crate) struct TestEngine {
    pub(crate) runtime: FakeRuntime,
    pub(crate) clock: Clock,
    /// How far the engine's clock is behind that of the runtime.
    behind: Arc<Mutex<SignedDuration>>,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) changes: Arc<Mutex<Vec<PodChange>>>,
    engine: Option<Engine>,
    supervisor: Supervisor,
    listener: JoinSet<()>,
}

pub(crate) fn settings(folder: &Path, node: &str) -> Settings {
    Settings {
        node: node.to_owned(),
        node_ips: vec![IpAddr::from([192, 0, 2, 10])],
        root: folder.join("root"),
        log_root: folder.join("logs"),
        seccomp_root: folder.join("seccomp"),
        cluster_dns: vec![IpAddr::from([10, 96, 0, 10])],
        cluster_domain: "cluster.local".to_owned(),
        resolv_conf: "".into(),
        hosts_file: "/etc/hosts".into(),
        cgroup_root: None,
        cgroups: None,
        allocatable: vk_pod_engine::backend::Resources::default(),
        memory: 8 << 30,
        oom_score_floor: -999,
        seccomp_default: false,
        parallel_pulls: None,
        pull_records: Some(folder.join("root/images")),
        max_crash_backoff: Duration::from_mins(5),
        relist: Duration::from_secs(1),
        resync: Duration::from_mins(1),
    }
}

// === impl TestEngine ===

impl TestEngine {
    /// Call it inside a tokio runtime.
    pub(crate) fn new() -> Self {
        Self::behind(SignedDuration::ZERO)
    }

    /// With a clock that is behind that of the runtime: as after the clock was set back.
    pub(crate) fn behind(by: SignedDuration) -> Self {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::following_tokio(start);
        let behind = Arc::new(Mutex::new(by));
        let mut test = Self {
            runtime: FakeRuntime::new(clock.clone()),
            clock: Clock::new({
                let behind = Arc::clone(&behind);
                move || clock.now() - *behind.lock()
            }),
            behind,
            folder: tempfile::tempdir().unwrap(),
            changes: Arc::default(),
            engine: None,
            supervisor: Supervisor::new(),
            listener: JoinSet::new(),
        };
        test.open();
        test
    }

    /// Sets the engine's clock back. What the runtime has recorded so far is in the future then.
    pub(crate) fn set_clock_back(&self, by: SignedDuration) {
        *self.behind.lock() += by;
    }

    /// Starts a process.
    pub(crate) fn open(&mut self) {
        let backend = Arc::new(self.runtime.clone());
        let settings = settings(self.folder.path(), NODE);
        let engine = Engine::new(backend, settings, self.clock.clone(), &self.supervisor).unwrap();
        let Changes::Push(mut changes) = engine.changes() else { panic!("the engine pushes") };
        let told = Arc::clone(&self.changes);
        self.listener.spawn(async move {
            while let Some(change) = changes.next().await {
                told.lock().push(change);
            }
        });
        self.engine = Some(engine);
    }

    /// Ends the process, as if it were killed.
    pub(crate) fn close(&mut self) {
        self.engine = None;
        self.listener.abort_all();
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    pub(crate) async fn create(&self, pod: &Arc<Pod>) -> PodRef {
        self.engine().create_pod(bundle(pod)).await.unwrap();
        reference(pod)
    }

    pub(crate) async fn status(&self, pod: &PodRef) -> PodStatus {
        self.engine().pod_status(pod).await.unwrap()
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn until(
        &self,
        pod: &PodRef,
        what: &str,
        wanted: impl Fn(&PodStatus) -> bool,
    ) -> PodStatus {
        let begun = tokio::time::Instant::now();
        loop {
            let answer = self.engine().pod_status(pod).await;
            match answer {
                Ok(status) if wanted(&status) => return status,
                other => assert!(begun.elapsed() < LIMIT, "not in time: {what}; last seen: {other:#?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn running(&self, pod: &PodRef) -> PodStatus {
        self.until(pod, "the pod runs", is_running).await
    }

    /// Waits until nothing of a pod runs.
    pub(crate) async fn wait_finished(&self, pod: &PodRef) -> Option<PodStatus> {
        let begun = tokio::time::Instant::now();
        loop {
            match self.engine().pod_status(pod).await {
                Ok(status) if is_over(&status) => return Some(status),
                Err(error) if *error.kind() == Kind::NotFound => return None,
                other => assert!(begun.elapsed() < LIMIT, "the pod does not end: {other:#?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until something holds that no status shows.
    pub(crate) async fn eventually(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = tokio::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LIMIT, "not in time: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Reasons and messages of the events so far, those of pods and those of containers.
    pub(crate) fn events(&self, pod: &PodRef) -> Vec<(String, String)> {
        let told = self.changes.lock();
        let events = told.iter().filter_map(|change| match change {
            PodChange::Event(event) if event.pod == *pod => {
                Some((event.reason.clone(), event.message.clone()))
            }
            _ => None,
        });
        events.collect()
    }

    pub(crate) fn count(&self, pod: &PodRef, reason: &str) -> usize {
        self.events(pod).into_iter().filter(|(told, _)| told == reason).count()
    }
}

/// A pod with this spec.
pub(crate) fn pod(name: &str, spec: Value) -> Arc<Pod> {
    let mut spec = spec;
    let defaults = [
        ("nodeName", json!(NODE)),
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("automountServiceAccountToken", json!(false)),
        ("enableServiceLinks", json!(true)),
        ("dnsPolicy", json!("ClusterFirst")),
    ];
    for (key, value) in defaults {
        if spec.get(key).is_none() {
            spec[key] = value;
        }
    }
    let value = json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": spec,
        "status": { "phase": "Pending" },
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

/// A container that does this.
pub(crate) fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": "busybox:1.37",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    })
}

/// Runs until it is stopped, and then ends at once.
pub(crate) const FOREVER: &str = "trap 'exit 0' TERM; echo up; while :; do sleep 1; done";
/// Runs until it is killed.
pub(crate) const STUBBORN: &str = "trap '' TERM; echo up; while :; do sleep 1; done";

pub(crate) fn reference(pod: &Pod) -> PodRef {
    PodRef::of(pod).unwrap()
}

/// The pod with a deletion timestamp.
pub(crate) fn deleted(pod: &Pod) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    Arc::new(pod)
}

pub(crate) fn bundle(pod: &Arc<Pod>) -> PodBundle {
    PodBundle { pod: Arc::clone(pod), resolver: Arc::new(Plain(Arc::clone(pod), None)) }
}

/// A pod whose containers need an object that exists when the gate is open.
pub(crate) fn gated(pod: &Arc<Pod>, gate: &watch::Sender<bool>) -> PodBundle {
    PodBundle { pod: Arc::clone(pod), resolver: Arc::new(Plain(Arc::clone(pod), Some(gate.subscribe()))) }
}

pub(crate) fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten()
}

pub(crate) fn container_status<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    statuses(status).find(|status| status.name == name).unwrap_or_else(|| panic!("no {name} in {status:#?}"))
}

pub(crate) fn is_running(status: &PodStatus) -> bool {
    let mut regular = status.container_statuses.iter().flatten();
    status.phase.as_deref() == Some("Running")
        && regular.all(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
}

pub(crate) fn is_over(status: &PodStatus) -> bool {
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    statuses(status).all(|one| {
        let state = one.state.clone().unwrap_or_default();
        state.running.is_none() && (state.terminated.is_some() || ended)
    })
}

pub(crate) fn waiting(status: &ContainerStatus) -> &str {
    let state = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    state.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default()
}

pub(crate) fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// A resolver for pods that refer to nothing, or to something behind a gate.
struct Plain(Arc<Pod>, Option<watch::Receiver<bool>>);

fn nothing<T>(kind: ReferenceKind, name: &str) -> Result<T> {
    let reference = Reference::new(kind, "default", name);
    let message = format!("resolve {reference}: it is not there");
    Err(Error::new(Kind::Unresolved(reference), message))
}

#[async_trait]
impl Resolver for Plain {
    async fn container(&self, name: &str, _facts: &Facts) -> Result<ContainerInputs> {
        if self.1.as_ref().is_some_and(|gate| !*gate.borrow()) {
            return nothing(ReferenceKind::ConfigMap, "settings");
        }
        let container = vk_pod_engine::containers::find_container(&self.0, name)
            .ok_or_else(|| Error::not_found(format!("no container {name}")))?;
        let env = container.spec.env.iter().flatten();
        let env = env.map(|variable| {
            Variable::new(&variable.name, variable.value.clone().unwrap_or_default(), Origin::Literal)
        });
        let command = container.spec.command.clone().map(CommandLine::literal);
        let args = container.spec.args.clone().map(CommandLine::literal);
        Ok(ContainerInputs { env: env.collect(), command, args })
    }

    fn volume(&self, name: &str, _tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        let missing = stream::iter([nothing(ReferenceKind::ConfigMap, name)]);
        let Some(gate) = self.1.clone() else { return missing.chain(stream::pending()).boxed() };
        // Each turn of the gate is news, and none is good.
        let more = stream::unfold((gate, name.to_owned()), |(mut gate, name)| async move {
            gate.changed().await.ok()?;
            Some((nothing(ReferenceKind::ConfigMap, &name), (gate, name)))
        });
        missing.chain(more).chain(stream::pending()).boxed()
    }

    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>> {
        nothing(ReferenceKind::ConfigMap, name)
    }

    async fn secret(&self, name: &str) -> Result<Arc<Secret>> {
        nothing(ReferenceKind::Secret, name)
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        Ok(Vec::new())
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        Err(Error::unsupported("request a token: there is no ServiceAccount"))
    }

    async fn pull_credentials(&self, _image: &str) -> Result<Vec<PullCredentials>> {
        Ok(Vec::new())
    }

    async fn claim(&self, name: &str) -> Result<Claim> {
        nothing(ReferenceKind::PersistentVolumeClaim, name)
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        Ok(None)
    }

    fn node(&self) -> NodeFacts {
        NodeFacts { name: NODE.to_owned(), ips: vec![IpAddr::from([192, 0, 2, 10])], ..NodeFacts::default() }
    }

    async fn appeared(&self, _reference: &Reference) {
        match self.1.clone() {
            Some(mut gate) => drop(gate.wait_for(|open| *open).await),
            None => std::future::pending().await,
        }
    }
}
