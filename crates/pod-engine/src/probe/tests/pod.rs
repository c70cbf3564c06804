use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;
use tokio::time::{Instant, advance, sleep, timeout};
use vk_provider::{EventKind, PodRef};
use vk_supervisor::Clock;

use super::{Does, Runtime, Server, Told, text};
use crate::{
    probe::{Kind, Prober, Probes, Verdict, worker::Worker},
    snapshot::{Container, ContainerState, Snapshot},
};

/// A pod on a runtime, and its probes.
struct Scene {
    runtime: Arc<Runtime>,
    prober: Arc<Prober>,
    probes: Probes,
    told: Told,
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

impl Scene {
    /// A pod with one container, on an agent that was started long ago.
    async fn new(probes: serde_json::Value, script: impl IntoIterator<Item = Does>) -> Self {
        Self::aged(probes, script, Duration::from_hours(1)).await
    }

    /// On an agent of some age.
    async fn aged(probes: serde_json::Value, script: impl IntoIterator<Item = Does>, age: Duration) -> Self {
        let mut scene = Self::begun(probes, script);
        advance(age).await;
        scene.sync();
        settle().await;
        scene
    }

    /// On an agent that has just begun, which knows nothing of the pod yet.
    fn begun(probes: serde_json::Value, script: impl IntoIterator<Item = Does>) -> Self {
        let mut container = json!({"name": "main", "env": [{"name": "WHAT", "value": "how"}]});
        merge(&mut container, probes);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [container]}
        }))
        .unwrap();
        let runtime = Runtime::that(script);
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let prober = Prober::new(runtime.clone(), clock).unwrap();
        let told = Told::default();
        let probes = Probes::new(prober.clone(), PodRef::of(&pod).unwrap(), told.sink());
        let (status, snapshot) = (PodStatus::default(), Snapshot::default());
        Self { runtime, prober, probes, told, pod, status, snapshot }
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

    /// The status says that the container has started, or has not.
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

    fn verdict(&self, id: &str, kind: Kind) -> Option<Verdict> {
        self.probes.verdicts().get(id, kind)
    }
}

/// Lets the tasks come to rest, without letting time pass that anybody would notice.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_becomes_ready_and_unready_as_its_probe_says() {
    let mut scene =
        Scene::new(json!({"readinessProbe": exec(json!({"failureThreshold": 2}))}), [Does::Ends(0, "")])
            .await;
    let mut changes = scene.probes.changes();
    settle().await;
    scene.starts("a", true);
    settle().await;
    assert_eq!(scene.runtime.count(), 1, "asked at once");
    assert_eq!(scene.runtime.commands.lock()[0], ("a".to_owned(), vec!["ask".to_owned(), "how".to_owned()]));
    assert_eq!(scene.runtime.limits.lock()[0], Duration::from_secs(1));
    assert_eq!(scene.verdict("a", Kind::Readiness), Some(Verdict::Success));
    changes.changed().await.unwrap();

    scene.runtime.now([Does::Ends(1, "no")]);
    let begun = Instant::now();
    changes.changed().await.unwrap();
    assert_eq!(scene.verdict("a", Kind::Readiness), Some(Verdict::Failure));
    assert!(begun.elapsed() > Duration::from_secs(19), "two periods: {:?}", begun.elapsed());
    let event = ("Unhealthy".to_owned(), "Readiness probe failed: no".to_owned());
    assert_eq!(scene.told.events(), [event.clone(), event]);
    let whole = &scene.told.whole()[0];
    assert_eq!((whole.container.as_deref(), whole.kind), (Some("main"), EventKind::Warning));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_tried_three_times_told_and_changes_no_verdict() {
    let mut scene = Scene::new(
        json!({"livenessProbe": exec(json!({"failureThreshold": 1}))}),
        [Does::Fails("rpc error: code = Unavailable desc = refused")],
    )
    .await;
    scene.starts("a", true);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(scene.runtime.count(), 3);
    assert_eq!(scene.verdict("a", Kind::Liveness), Some(Verdict::Success));
    let message =
        "Liveness probe errored and resulted in unknown state: rpc error: code = Unavailable desc = refused";
    assert_eq!(scene.told.events(), [("Unhealthy".to_owned(), message.to_owned())]);
    scene.runtime.now([Does::Fails("once"), Does::Ends(0, "")]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!((scene.runtime.count(), scene.told.events().len()), (5, 1), "the second attempt was good");
}

#[tokio::test(start_paused = true)]
async fn a_liveness_failure_is_told_once_and_the_probe_waits_for_another_container() {
    let mut scene = Scene::new(
        json!({"livenessProbe": exec(json!({"failureThreshold": 2}))}),
        [Does::TimesOut("command timed out: \"ask how\" timed out after 1s")],
    )
    .await;
    let mut changes = scene.probes.changes();
    scene.starts("a", true);
    changes.changed().await.unwrap();
    assert_eq!(scene.verdict("a", Kind::Liveness), Some(Verdict::Failure));
    sleep(Duration::from_secs(105)).await;
    assert_eq!(scene.runtime.count(), 2);
    let message = "Liveness probe failed: command timed out: \"ask how\" timed out after 1s";
    assert_eq!(scene.told.events()[0].1, message);
    scene.starts("b", true);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(scene.runtime.count(), 3);
    assert_eq!(scene.runtime.commands.lock()[2].0, "b");
    assert_eq!(scene.verdict("b", Kind::Liveness), Some(Verdict::Success));
    assert_eq!(scene.verdict("a", Kind::Liveness), None);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_asked_at_once_when_the_start_is_over_and_not_before() {
    let mut scene = Scene::new(
        json!({"startupProbe": exec(json!({"periodSeconds": 1})), "readinessProbe": exec(json!({"periodSeconds": 60}))}),
        [Does::Ends(1, ""), Does::Ends(0, "")],
    )
    .await;
    let mut changes = scene.probes.changes();
    scene.starts("a", false);
    timeout(
        Duration::from_secs(30),
        changes.wait_for(|_| scene.verdict("a", Kind::Startup) == Some(Verdict::Success)),
    )
    .await
    .unwrap()
    .unwrap();
    assert_eq!(scene.runtime.count(), 2, "startup only");
    assert_eq!(scene.told.events()[0].1, "Startup probe failed: ");
    scene.has_started(true);
    settle().await;
    assert_eq!(scene.verdict("a", Kind::Readiness), Some(Verdict::Success));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(scene.runtime.count(), 3, "startup is over");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_stopped_is_asked_only_whether_it_is_ready() {
    let mut scene = Scene::new(
        json!({"livenessProbe": exec(json!({"failureThreshold": 1})), "readinessProbe": exec(json!({}))}),
        [Does::Ends(0, "")],
    )
    .await;
    scene.starts("a", true);
    sleep(Duration::from_secs(15)).await;
    scene.probes.stopping();
    scene.runtime.now([Does::Ends(1, "")]);
    let before = scene.runtime.count();
    sleep(Duration::from_secs(40)).await;
    assert_eq!(scene.verdict("a", Kind::Liveness), Some(Verdict::Success));
    assert_eq!(scene.verdict("a", Kind::Readiness), Some(Verdict::Failure));
    assert_eq!(scene.runtime.count(), before + 4, "readiness goes on, once each period");
    scene.sync();
    assert_eq!(scene.probes.inner.lock().workers.len(), 2, "nothing begins again");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_under_way_ends_with_its_pod() {
    let mut scene = Scene::new(json!({"readinessProbe": exec(json!({}))}), [Does::Hangs]).await;
    settle().await;
    scene.starts("a", true);
    settle().await;
    let runtime = scene.runtime.clone();
    let running = || runtime.running.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(running(), 1);
    drop(scene);
    settle().await;
    assert_eq!(running(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_probes_of_an_agent_that_was_just_started_are_spread_over_their_period() {
    let mut firsts = Vec::new();
    for _ in 0..20 {
        let probes = json!({"livenessProbe": exec(json!({"periodSeconds": 1000}))});
        let mut scene = Scene::aged(probes, [Does::Ends(0, "")], Duration::from_secs(1)).await;
        scene.starts("a", true);
        let begun = Instant::now();
        while scene.runtime.count() == 0 {
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
    let mut scene = Scene::new(json!({"readinessProbe": exec(json!({}))}), [Does::Ends(0, "")]).await;
    scene.pod.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    scene.starts("a", true);
    sleep(Duration::from_secs(11)).await;
    scene.snapshot.containers[0].state = ContainerState::Exited;
    scene.sync();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(scene.verdict("a", Kind::Readiness), None);
    let before = scene.runtime.count();
    scene.starts("b", true);
    settle().await;
    assert_eq!(scene.runtime.count(), before + 1);
    assert_eq!(scene.verdict("b", Kind::Readiness), Some(Verdict::Success));
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_probes_costs_no_task_and_one_with_them_little_memory() {
    let mut scene = Scene::new(json!({}), []).await;
    scene.starts("a", true);
    assert!(scene.probes.inner.lock().tasks.is_empty());

    let scene = Scene::new(json!({"readinessProbe": exec(json!({}))}), []).await;
    let worker: Arc<Worker> = scene.probes.inner.lock().workers.values().next().unwrap().clone();
    let size = size_of_val(&worker.run(scene.probes.shared.clone()));
    assert!(size < 1024, "{size} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_nothing_and_a_pod_without_address_are_errors() {
    let mut scene = Scene::new(json!({"livenessProbe": {"periodSeconds": 10}}), []).await;
    scene.starts("a", true);
    sleep(Duration::from_secs(11)).await;
    let message =
        "Liveness probe errored and resulted in unknown state: missing probe handler for p_ns(u):main";
    assert_eq!(scene.told.events()[0].1, message);

    let mut scene =
        Scene::new(json!({"livenessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 10}}), []).await;
    scene.starts("a", true);
    scene.status.pod_ip = None;
    scene.sync();
    sleep(Duration::from_secs(11)).await;
    let message = "Liveness probe errored and resulted in unknown state: the pod has no IP address yet";
    assert_eq!(scene.told.events()[0].1, message);
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_probed_on_while_the_pod_is_stopped_and_init_containers_never() {
    let mut scene = Scene::new(json!({"livenessProbe": exec(json!({}))}), [Does::Ends(1, "")]).await;
    let spec = scene.pod.spec.as_mut().unwrap();
    let mut sidecar = spec.containers[0].clone();
    "side".clone_into(&mut sidecar.name);
    sidecar.restart_policy = Some("Always".to_owned());
    let mut init = spec.containers[0].clone();
    "init".clone_into(&mut init.name);
    spec.init_containers = Some(vec![init, sidecar]);
    scene.starts("a", true);
    for name in ["side", "init"] {
        let mut container = scene.snapshot.containers[0].clone();
        (container.id, container.name) = (name.to_owned(), name.to_owned());
        scene.snapshot.containers.push(container);
    }
    let mut status = scene.status.container_statuses.as_ref().unwrap()[0].clone();
    "side".clone_into(&mut status.name);
    scene.status.init_container_statuses = Some(vec![status]);
    scene.sync();
    sleep(Duration::from_secs(11)).await;
    let asked = |scene: &Scene| {
        let mut all: Vec<_> = scene.runtime.commands.lock().iter().map(|(id, _)| id.clone()).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(asked(&scene), ["a", "side"]);
    scene.pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(scene.now()));
    scene.sync();
    scene.runtime.commands.lock().clear();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(asked(&scene), ["side"]);
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
    let mut scene = Scene::begun(probes, []);
    let mut changes = scene.probes.changes();
    scene.starts("a", true);
    let all = |probes: &Probes| {
        probes.verdicts().get("a", Kind::Readiness) == Some(Verdict::Success)
            && probes.verdicts().get("a", Kind::Liveness) == Some(Verdict::Failure)
    };
    timeout(Duration::from_secs(20), changes.wait_for(|_| all(&scene.probes))).await.unwrap().unwrap();
    let events = scene.told.events();
    let told = |reason: &str, message: &str| events.contains(&(reason.to_owned(), message.to_owned()));
    assert!(
        told("ProbeWarning", "Readiness probe warning: Probe terminated redirects, Response body: moved"),
        "{events:?}"
    );
    let message =
        "Liveness probe failed: error: health rpc probe failed: rpc error: code = NotFound desc = who?";
    assert!(told("Unhealthy", message), "{events:?}");

    let probes = json!({
        "ports": [{"name": "mute", "containerPort": mute.address.port()}],
        "startupProbe": often(json!({"tcpSocket": {"port": "mute"}})),
    });
    let mut scene = Scene::begun(probes, []);
    let mut changes = scene.probes.changes();
    scene.starts("a", false);
    let started = |probes: &Probes| probes.verdicts().get("a", Kind::Startup) == Some(Verdict::Success);
    timeout(Duration::from_secs(20), changes.wait_for(|_| started(&scene.probes))).await.unwrap().unwrap();
    assert!(scene.told.events().is_empty());
}
