use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;
use tokio::time::{Instant, advance, sleep, timeout};
use vk_provider::{EventKind, PodRef};
use vk_supervisor::Clock;

use super::{RecordedEvents, Script, ScriptedRuntime, Server, text};
use crate::{
    probe::{PodProbes, ProbeKind, ProbeResult, Prober, worker::ProbeWorker},
    snapshot::{Container, ContainerState, Snapshot},
};

/// A pod on a runtime, and its probes.
struct ProbeFixture {
    runtime: Arc<ScriptedRuntime>,
    prober: Arc<Prober>,
    probes: PodProbes,
    events: RecordedEvents,
    pod: Pod,
    status: PodStatus,
    snapshot: Snapshot,
}

fn exec(more: serde_json::Value) -> serde_json::Value {
    let mut probe = json!({"exec": {"command": ["ask", "$(WHAT)"]}, "periodSeconds": 10});
    merge(&mut probe, more);
    probe
}

/// Adds the fields of one object to another.
pub(super) fn merge(object: &mut serde_json::Value, more: serde_json::Value) {
    let serde_json::Value::Object(more) = more else { panic!("an object: {more}") };
    object.as_object_mut().unwrap().extend(more);
}

impl ProbeFixture {
    /// A pod with one container, on an agent that was started long ago.
    async fn new(probes: serde_json::Value, script: impl IntoIterator<Item = Script>) -> Self {
        Self::aged(probes, script, Duration::from_hours(1)).await
    }

    /// On an agent of this age.
    async fn aged(
        probes: serde_json::Value,
        script: impl IntoIterator<Item = Script>,
        age: Duration,
    ) -> Self {
        let mut fixture = Self::begun(probes, script);
        advance(age).await;
        fixture.sync();
        settle().await;
        fixture
    }

    /// On an agent that has just started and does not know the pod.
    fn begun(probes: serde_json::Value, script: impl IntoIterator<Item = Script>) -> Self {
        let mut container = json!({"name": "main", "env": [{"name": "WHAT", "value": "how"}]});
        merge(&mut container, probes);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [container]}
        }))
        .unwrap();
        let runtime = ScriptedRuntime::that(script);
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let prober = Prober::new(runtime.clone(), clock).unwrap();
        let events = RecordedEvents::default();
        let probes = PodProbes::new(prober.clone(), PodRef::of(&pod).unwrap(), events.sink());
        let (status, snapshot) = (PodStatus::default(), Snapshot::default());
        Self { runtime, prober, probes, events, pod, status, snapshot }
    }

    fn now(&self) -> Timestamp {
        self.prober.clock.now()
    }

    /// The container runs from now on.
    fn starts(&mut self, id: &str, started: bool) {
        let now = self.now();
        let container: Container = serde_json::from_value(json!({
            "id": id, "name": "main", "attempt": 0, "sandbox": "s", "state": "Running", "created": now,
            "started": now, "image": "", "imageRef": "", "logPath": "", "labels": {}, "annotations": {},
        }))
        .unwrap();
        self.snapshot.containers.insert(0, container);
        self.has_started(started);
    }

    /// Sets whether the container has started in the status.
    fn has_started(&mut self, started: bool) {
        self.status = serde_json::from_value(json!({
            "phase": "Running", "podIP": "127.0.0.1",
            "containerStatuses": [{
                "name": "main", "started": started, "ready": false, "image": "", "imageID": "", "restartCount": 0,
            }],
        }))
        .unwrap();
        self.sync();
    }

    fn sync(&mut self) {
        self.probes.sync(&self.pod, &self.snapshot, &self.status);
    }

    fn result(&self, id: &str, kind: ProbeKind) -> Option<ProbeResult> {
        self.probes.results().get(id, kind)
    }
}

/// Lets the tasks run until they are idle, with almost no time passing.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_becomes_ready_and_unready_as_its_probe_says() {
    let mut fixture = ProbeFixture::new(
        json!({"readinessProbe": exec(json!({"failureThreshold": 2}))}),
        [Script::Ends(0, "")],
    )
    .await;
    let mut changes = fixture.probes.changes();
    settle().await;
    fixture.starts("a", true);
    settle().await;
    assert_eq!(fixture.runtime.count(), 1, "asked at once");
    assert_eq!(
        fixture.runtime.commands.lock()[0],
        ("a".to_owned(), vec!["ask".to_owned(), "how".to_owned()])
    );
    assert_eq!(fixture.runtime.limits.lock()[0], Duration::from_secs(1));
    assert_eq!(fixture.result("a", ProbeKind::Readiness), Some(ProbeResult::Success));
    changes.changed().await.unwrap();

    fixture.runtime.now([Script::Ends(1, "no")]);
    let begun = Instant::now();
    changes.changed().await.unwrap();
    assert_eq!(fixture.result("a", ProbeKind::Readiness), Some(ProbeResult::Failure));
    assert!(begun.elapsed() > Duration::from_secs(19), "two periods: {:?}", begun.elapsed());
    let event = ("Unhealthy".to_owned(), "Readiness probe failed: no".to_owned());
    assert_eq!(fixture.events.events(), [event.clone(), event]);
    let whole = &fixture.events.whole()[0];
    assert_eq!((whole.container.as_deref(), whole.kind), (Some("main"), EventKind::Warning));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_tried_three_times_told_and_changes_no_verdict() {
    let mut fixture = ProbeFixture::new(
        json!({"livenessProbe": exec(json!({"failureThreshold": 1}))}),
        [Script::Fails("rpc error: code = Unavailable desc = refused")],
    )
    .await;
    fixture.starts("a", true);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(fixture.runtime.count(), 3);
    assert_eq!(fixture.result("a", ProbeKind::Liveness), Some(ProbeResult::Success));
    let message =
        "Liveness probe errored and resulted in unknown state: rpc error: code = Unavailable desc = refused";
    assert_eq!(fixture.events.events(), [("Unhealthy".to_owned(), message.to_owned())]);
    fixture.runtime.now([Script::Fails("once"), Script::Ends(0, "")]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        (fixture.runtime.count(), fixture.events.events().len()),
        (5, 1),
        "the second attempt was good"
    );
}

#[tokio::test(start_paused = true)]
async fn a_liveness_failure_is_told_once_and_the_probe_waits_for_another_container() {
    let mut fixture = ProbeFixture::new(
        json!({"livenessProbe": exec(json!({"failureThreshold": 2}))}),
        [Script::TimesOut("command timed out: \"ask how\" timed out after 1s")],
    )
    .await;
    let mut changes = fixture.probes.changes();
    fixture.starts("a", true);
    changes.changed().await.unwrap();
    assert_eq!(fixture.result("a", ProbeKind::Liveness), Some(ProbeResult::Failure));
    sleep(Duration::from_secs(105)).await;
    assert_eq!(fixture.runtime.count(), 2);
    let message = "Liveness probe failed: command timed out: \"ask how\" timed out after 1s";
    assert_eq!(fixture.events.events()[0].1, message);
    fixture.starts("b", true);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(fixture.runtime.count(), 3);
    assert_eq!(fixture.runtime.commands.lock()[2].0, "b");
    assert_eq!(fixture.result("b", ProbeKind::Liveness), Some(ProbeResult::Success));
    assert_eq!(fixture.result("a", ProbeKind::Liveness), None);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_asked_at_once_when_the_start_is_over_and_not_before() {
    let mut fixture = ProbeFixture::new(
        json!({"startupProbe": exec(json!({"periodSeconds": 1})), "readinessProbe": exec(json!({"periodSeconds": 60}))}),
        [Script::Ends(1, ""), Script::Ends(0, "")],
    )
    .await;
    let mut changes = fixture.probes.changes();
    fixture.starts("a", false);
    timeout(
        Duration::from_secs(30),
        changes.wait_for(|_| fixture.result("a", ProbeKind::Startup) == Some(ProbeResult::Success)),
    )
    .await
    .unwrap()
    .unwrap();
    assert_eq!(fixture.runtime.count(), 2, "startup only");
    assert_eq!(fixture.events.events()[0].1, "Startup probe failed: ");
    fixture.has_started(true);
    settle().await;
    assert_eq!(fixture.result("a", ProbeKind::Readiness), Some(ProbeResult::Success));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.runtime.count(), 3, "startup is over");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_stopped_is_asked_only_whether_it_is_ready() {
    let mut fixture = ProbeFixture::new(
        json!({"livenessProbe": exec(json!({"failureThreshold": 1})), "readinessProbe": exec(json!({}))}),
        [Script::Ends(0, "")],
    )
    .await;
    fixture.starts("a", true);
    sleep(Duration::from_secs(15)).await;
    fixture.probes.begin_stopping();
    fixture.runtime.now([Script::Ends(1, "")]);
    let before = fixture.runtime.count();
    sleep(Duration::from_secs(40)).await;
    assert_eq!(fixture.result("a", ProbeKind::Liveness), Some(ProbeResult::Success));
    assert_eq!(fixture.result("a", ProbeKind::Readiness), Some(ProbeResult::Failure));
    assert_eq!(fixture.runtime.count(), before + 4, "readiness goes on, once each period");
    fixture.sync();
    assert_eq!(fixture.probes.inner.lock().workers.len(), 2, "nothing begins again");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_under_way_ends_with_its_pod() {
    let mut fixture = ProbeFixture::new(json!({"readinessProbe": exec(json!({}))}), [Script::Hangs]).await;
    settle().await;
    fixture.starts("a", true);
    settle().await;
    let runtime = fixture.runtime.clone();
    let running = || runtime.running.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(running(), 1);
    drop(fixture);
    settle().await;
    assert_eq!(running(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_probes_of_an_agent_that_was_just_started_are_spread_over_their_period() {
    let mut firsts = Vec::new();
    for _ in 0..20 {
        let probes = json!({"livenessProbe": exec(json!({"periodSeconds": 1000}))});
        let mut fixture = ProbeFixture::aged(probes, [Script::Ends(0, "")], Duration::from_secs(1)).await;
        fixture.starts("a", true);
        let begun = Instant::now();
        while fixture.runtime.count() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(1001));
            sleep(Duration::from_secs(1)).await;
        }
        firsts.push(begun.elapsed().as_secs());
    }
    let (least, most) = (firsts.iter().min().unwrap(), firsts.iter().max().unwrap());
    assert!(most - least > 100, "{firsts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_has_ended_for_good_rests_until_there_is_another() {
    let mut fixture =
        ProbeFixture::new(json!({"readinessProbe": exec(json!({}))}), [Script::Ends(0, "")]).await;
    fixture.pod.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    fixture.starts("a", true);
    sleep(Duration::from_secs(11)).await;
    fixture.snapshot.containers[0].state = ContainerState::Exited;
    fixture.sync();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(fixture.result("a", ProbeKind::Readiness), None);
    let before = fixture.runtime.count();
    fixture.starts("b", true);
    settle().await;
    assert_eq!(fixture.runtime.count(), before + 1);
    assert_eq!(fixture.result("b", ProbeKind::Readiness), Some(ProbeResult::Success));
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_probes_costs_no_task_and_one_with_them_little_memory() {
    let mut fixture = ProbeFixture::new(json!({}), []).await;
    fixture.starts("a", true);
    assert!(fixture.probes.inner.lock().tasks.is_empty());

    let fixture = ProbeFixture::new(json!({"readinessProbe": exec(json!({}))}), []).await;
    let worker: Arc<ProbeWorker> = fixture.probes.inner.lock().workers.values().next().unwrap().clone();
    let size = size_of_val(&worker.run(fixture.probes.shared.clone()));
    assert!(size < 1024, "{size} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_nothing_and_a_pod_without_address_are_errors() {
    let mut fixture = ProbeFixture::new(json!({"livenessProbe": {"periodSeconds": 10}}), []).await;
    fixture.starts("a", true);
    sleep(Duration::from_secs(11)).await;
    let message =
        "Liveness probe errored and resulted in unknown state: missing probe handler for p_ns(u):main";
    assert_eq!(fixture.events.events()[0].1, message);

    let mut fixture =
        ProbeFixture::new(json!({"livenessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 10}}), [])
            .await;
    fixture.starts("a", true);
    fixture.status.pod_ip = None;
    fixture.sync();
    sleep(Duration::from_secs(11)).await;
    let message = "Liveness probe errored and resulted in unknown state: the pod has no IP address yet";
    assert_eq!(fixture.events.events()[0].1, message);
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_probed_on_while_the_pod_is_stopped_and_init_containers_never() {
    let mut fixture =
        ProbeFixture::new(json!({"livenessProbe": exec(json!({}))}), [Script::Ends(1, "")]).await;
    let spec = fixture.pod.spec.as_mut().unwrap();
    let mut sidecar = spec.containers[0].clone();
    "side".clone_into(&mut sidecar.name);
    sidecar.restart_policy = Some("Always".to_owned());
    let mut init = spec.containers[0].clone();
    "init".clone_into(&mut init.name);
    spec.init_containers = Some(vec![init, sidecar]);
    fixture.starts("a", true);
    for name in ["side", "init"] {
        let mut container = fixture.snapshot.containers[0].clone();
        (container.id, container.name) = (name.to_owned(), name.to_owned());
        fixture.snapshot.containers.push(container);
    }
    let mut status = fixture.status.container_statuses.as_ref().unwrap()[0].clone();
    "side".clone_into(&mut status.name);
    fixture.status.init_container_statuses = Some(vec![status]);
    fixture.sync();
    sleep(Duration::from_secs(11)).await;
    let asked = |fixture: &ProbeFixture| {
        let mut all: Vec<_> = fixture.runtime.commands.lock().iter().map(|(id, _)| id.clone()).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(asked(&fixture), ["a", "side"]);
    fixture.pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(fixture.now()));
    fixture.sync();
    fixture.runtime.commands.lock().clear();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(asked(&fixture), ["side"]);
}

#[tokio::test]
async fn every_way_to_ask_leads_to_a_verdict() {
    let web = Server::http(|_: &Request<Incoming>| {
        Response::builder()
            .status(302)
            .header("location", "http://elsewhere.invalid/")
            .body(text("moved"))
            .unwrap()
    })
    .await;
    let mute = Server::raw(b"", false).await;
    let broken = Server::http2(|_: &Request<Incoming>| {
        Response::builder().header("grpc-status", "5").header("grpc-message", "who?").body(text("")).unwrap()
    })
    .await;
    let often = |mut probe: serde_json::Value| {
        merge(&mut probe, json!({"periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1}));
        probe
    };
    let probes = json!({
        "ports": [{"name": "mute", "containerPort": mute.address.port()}],
        "readinessProbe": often(json!({"httpGet": {"port": web.address.port()}})),
        "livenessProbe": often(json!({"grpc": {"port": broken.address.port()}})),
    });
    let mut fixture = ProbeFixture::begun(probes, []);
    let mut changes = fixture.probes.changes();
    fixture.starts("a", true);
    let all = |probes: &PodProbes| {
        probes.results().get("a", ProbeKind::Readiness) == Some(ProbeResult::Success)
            && probes.results().get("a", ProbeKind::Liveness) == Some(ProbeResult::Failure)
    };
    timeout(Duration::from_secs(20), changes.wait_for(|_| all(&fixture.probes))).await.unwrap().unwrap();
    let events = fixture.events.events();
    let recorded = |reason: &str, message: &str| events.contains(&(reason.to_owned(), message.to_owned()));
    assert!(
        recorded("ProbeWarning", "Readiness probe warning: Probe terminated redirects, Response body: moved"),
        "{events:?}"
    );
    let message =
        "Liveness probe failed: error: health rpc probe failed: rpc error: code = NotFound desc = who?";
    assert!(recorded("Unhealthy", message), "{events:?}");

    let probes = json!({
        "ports": [{"name": "mute", "containerPort": mute.address.port()}],
        "startupProbe": often(json!({"tcpSocket": {"port": "mute"}})),
    });
    let mut fixture = ProbeFixture::begun(probes, []);
    let mut changes = fixture.probes.changes();
    fixture.starts("a", false);
    let started =
        |probes: &PodProbes| probes.results().get("a", ProbeKind::Startup) == Some(ProbeResult::Success);
    timeout(Duration::from_secs(20), changes.wait_for(|_| started(&fixture.probes))).await.unwrap().unwrap();
    assert!(fixture.events.events().is_empty());
}
