//! Providers that break their contract: nothing fails, nothing spins, and an event reports it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodStatus};
use serde_json::json;
use vk_provider::{Changes, ObservedPod, PodBundle, PodRef, Provider, Result};
use vk_provider_mock::Mock;

use super::{
    fixture::{
        PodFixture, condition, container, is_running, message, phase, reason, reference, status, uid, until,
    },
    scripted_provider::{ScriptedProvider, report, running},
};

/// The mock, whose first creation panics.
pub(super) struct Panics {
    mock: Mock,
    done: AtomicBool,
}

impl Panics {
    pub(super) fn new(mock: Mock) -> Self {
        Self { mock, done: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Provider for Panics {
    async fn create_pod(&self, pod: PodBundle) -> Result<()> {
        assert!(self.done.swap(true, Ordering::Relaxed), "a panic that the test wants");
        self.mock.create_pod(pod).await
    }

    async fn update_pod(&self, pod: PodBundle) -> Result<()> {
        self.mock.update_pod(pod).await
    }

    async fn delete_pod(&self, pod: &PodRef, last_known: Option<Arc<Pod>>, grace: Duration) -> Result<()> {
        self.mock.delete_pod(pod, last_known, grace).await
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        self.mock.pod_status(pod).await
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        self.mock.pods().await
    }

    fn changes(&self) -> Changes {
        self.mock.changes()
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_nonsense_status_is_refused_with_an_event_and_few_writes() {
    let fixture = PodFixture::admin("nonsense").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({})).await;
    run.wrote(1).await;

    let mut nonsense = report("Pending", &json!({"running": {}}), 5);
    let all = nonsense.container_statuses.as_mut().unwrap();
    let state = all[0].state.as_mut().unwrap();
    state.terminated = serde_json::from_value(json!({"exitCode": 1})).unwrap();
    all.push(ContainerStatus {
        name: "stranger".to_owned(),
        state: Some(ContainerState {
            running: Some(ContainerStateRunning::default()),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    });
    for _ in 0..50 {
        provider.set(&reference(&pod), nonsense.clone());
    }
    let event = fixture.see_event(&pod, "InvalidProviderStatus").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let text = event.message.unwrap();
    for part in ["stranger", "Pending after Running", "2 states at once"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let now = fixture.see("web", "the rest of it", |pod| container(pod, "main").restart_count == 5).await;
    assert_eq!(phase(&now), "Running");
    assert_eq!(status(&now).container_statuses.unwrap().len(), 1);
    assert!(container(&now, "main").state.unwrap().running.is_none());
    provider.set(&reference(&pod), running());
    fixture
        .see("web", "sense again", |pod| is_running(pod) && container(pod, "main").restart_count == 0)
        .await;
    // One for each that differs.
    run.wrote(3).await;
    let events = fixture.events(&pod).await;
    let refused = events.iter().filter(|event| event.reason.as_deref() == Some("InvalidProviderStatus"));
    assert_eq!(refused.count(), 1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_terminal_phase_is_final() {
    let fixture = PodFixture::admin("final").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    let pod = fixture.create_running("job", json!({"spec": {"restartPolicy": "Never"}})).await;
    provider.set(&reference(&pod), report("Succeeded", &json!({"terminated": {"exitCode": 0}}), 0));
    fixture.see("job", "the end", |pod| phase(pod) == "Succeeded").await;
    provider.set(&reference(&pod), running());
    fixture.see_event(&pod, "InvalidProviderStatus").await;
    let now = fixture.get("job").await.unwrap();
    assert_eq!(phase(&now), "Succeeded");
    assert!(container(&now, "main").state.unwrap().terminated.is_some());
}

/// For providers that do not do it themselves.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn active_deadline_seconds_are_enforced() {
    let fixture = PodFixture::admin("deadline").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let script = json!({"spec": {"activeDeadlineSeconds": 2, "terminationGracePeriodSeconds": 7}});
    let pod = fixture.create_running("job", script).await;
    let failed = fixture.see("job", "the end of its time", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&failed), "DeadlineExceeded");
    assert!(message(&failed).contains("longer than the specified deadline"));
    let ended = container(&failed, "main").state.unwrap();
    assert!(ended.running.is_none() && ended.terminated.is_some(), "{ended:?}");
    assert_eq!(condition(&failed, "Ready").unwrap().reason.as_deref(), Some("PodFailed"));
    assert_eq!(run.recorder.deletes(uid(&pod)), [Duration::from_secs(7)]);
    fixture.see_event(&pod, "DeadlineExceeded").await;
    let reasons: Vec<_> = fixture.events(&pod).await.into_iter().filter_map(|event| event.reason).collect();
    assert!(!reasons.contains(&"PodLost".to_owned()), "{reasons:?}");
    assert_eq!(run.recorder.creates(uid(&pod)), 1);
    fixture.delete("job", None).await;
    fixture.see_gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn an_active_deadline_that_comes_later_is_enforced() {
    let fixture = PodFixture::admin("laterdeadline").await;
    let run = fixture.start(ScriptedProvider::new(&fixture.node));
    let pod = fixture.create_running("job", json!({"spec": {"restartPolicy": "Never"}})).await;
    fixture.patch("job", json!({"spec": {"activeDeadlineSeconds": 1}})).await;
    let failed = fixture.see("job", "the end of its time", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&failed), "DeadlineExceeded");
    assert_eq!(run.recorder.deletes(uid(&pod)).len(), 1);
}

/// Many containers, and a pod that is nearly as large as the API server allows.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_pod_with_fifty_containers_and_a_pod_of_nearly_a_mebibyte_run() {
    let fixture = PodFixture::admin("large").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let containers: Vec<_> =
        (0..50).map(|number| json!({"name": format!("c{number}"), "image": "example.com/app:1"})).collect();
    fixture.create("fifty", json!({"spec": {"containers": containers}})).await;
    let text = "x".repeat(900_000);
    fixture
        .create(
            "fat",
            json!({"spec": {"containers": [{
                "name": "main", "image": "example.com/app:1", "env": [{"name": "TEXT", "value": text}],
            }]}}),
        )
        .await;
    let fifty = fixture.see("fifty", "a running pod", is_running).await;
    assert_eq!(status(&fifty).container_statuses.unwrap().len(), 50);
    let fat = fixture.see("fat", "a running pod", is_running).await;
    run.wrote(2).await;
    fixture.delete("fifty", Some(30)).await;
    fixture.delete("fat", Some(30)).await;
    fixture.see_gone(&fifty).await;
    fixture.see_gone(&fat).await;
    until("no pods", || run.recorder.deletes(uid(&fat)).len(), |count| *count == 1).await;
}

/// The API server would refuse the whole status, again and again.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn what_the_api_server_would_refuse_does_not_hold_up_the_rest() {
    let fixture = PodFixture::admin("refused").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let run = fixture.start(provider.clone());
    let script = json!({"spec": {
        "restartPolicy": "OnFailure",
        "containers": [{"name": "main", "image": "example.com/a:1"}, {"name": "side", "image": "example.com/b:1"}],
    }});
    fixture.create("web", script).await;
    let pod = fixture.see("web", "a running pod", |pod| phase(pod) == "Running").await;
    // An end with code 0 is an end for good under this policy, though the other container goes on.
    provider.set(&reference(&pod), report("Running", &json!({"terminated": {"exitCode": 0}}), 0));
    let ended = |pod: &_| container(pod, "main").state.unwrap_or_default().terminated.is_some();
    fixture.see("web", "an ended container", ended).await;
    provider.set(&reference(&pod), PodStatus { pod_ip: Some("nowhere".to_owned()), ..running() });
    let event = fixture.see_event(&pod, "InvalidProviderStatus").await;
    let text = event.message.unwrap();
    assert!(text.contains("nowhere") && text.contains("running again"), "{text}");
    // Two writes that were answered well, and the third that takes the address away.
    run.wrote(3).await;
    assert!(ended(&fixture.get("web").await.unwrap()));
    assert_eq!(status(&fixture.get("web").await.unwrap()).pod_ip, None);
}

/// What the API server refuses and the core does not know to be invalid: the status and the removal go on without it.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_status_that_the_api_server_refuses_is_written_without_the_offending_part_and_the_pod_can_leave() {
    let fixture = PodFixture::admin("offending").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({"spec": {"restartPolicy": "Never"}})).await;
    let refused = |mut status: PodStatus| {
        let user = json!({"linux": {"uid": -1, "gid": 0}});
        status.container_statuses.as_mut().unwrap()[0].user = serde_json::from_value(user).unwrap();
        status
    };
    provider.set(&reference(&pod), PodStatus { pod_ip: Some("10.9.8.8".to_owned()), ..refused(running()) });
    let event = fixture.see_event(&pod, "StatusRefused").await;
    let text = event.message.unwrap();
    assert!(text.contains("status.containerStatuses is left out"), "{text}");
    fixture.see("web", "the new address", |pod| status(pod).pod_ip.as_deref() == Some("10.9.8.8")).await;
    provider.turn_deaf();
    fixture.delete("web", Some(30)).await;
    fixture.see("web", "its deletion", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    let end = report("Failed", &json!({"terminated": {"exitCode": 137}}), 0);
    provider.set(&reference(&pod), refused(end));
    fixture.see_gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn two_addresses_of_one_family_are_told_and_the_pod_runs_with_the_first_and_can_leave() {
    let fixture = PodFixture::admin("family").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    let pod = fixture.create_running("web", json!({})).await;
    let ips = serde_json::from_value(json!([{"ip": "10.9.8.8"}, {"ip": "10.9.8.9"}])).unwrap();
    provider
        .set(&reference(&pod), PodStatus { pod_ip: Some("10.9.8.8".to_owned()), pod_ips: ips, ..running() });
    fixture.see("web", "the first address", |pod| status(pod).pod_ip.as_deref() == Some("10.9.8.8")).await;
    let event = fixture.see_event(&pod, "InvalidProviderStatus").await;
    assert!(event.message.unwrap().contains("10.9.8.9"));
    fixture.delete("web", Some(30)).await;
    fixture.see_gone(&pod).await;
}

/// By the rule of the API server, which is asked here.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn containers_that_restart_rules_bring_back_are_shown_running() {
    let fixture = PodFixture::admin("rules").await;
    let provider = ScriptedProvider::new(&fixture.node);
    let _run = fixture.start(provider.clone());
    for action in ["Restart", "RestartAllContainers"] {
        let rule = json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
        let name = action.to_lowercase();
        let script = json!({"spec": {"restartPolicy": "Never", "containers": [{
            "name": "main", "image": "example.com/app:1", "restartPolicy": "Never", "restartPolicyRules": rule,
        }]}});
        let pod = fixture.create_running(&name, script).await;
        provider.set(&reference(&pod), report("Running", &json!({"terminated": {"exitCode": 42}}), 0));
        let ended = |pod: &_| container(pod, "main").state.unwrap_or_default().terminated.is_some();
        fixture.see(&name, "an ended container", ended).await;
        let mut again = running();
        again.container_statuses.as_mut().unwrap()[0].restart_count = 1;
        provider.set(&reference(&pod), again);
        let runs = |pod: &_| is_running(pod) && container(pod, "main").restart_count == 1;
        fixture.see(&name, "a container that runs again", runs).await;
    }
}
