//! The event stream, which may start late or not at all.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use tokio::{sync::mpsc, time::timeout};
use tonic::Status;
use vk_pod_engine::ContainerBackend as _;
use vk_provider_cri::{Cri, proto};

use crate::fake_runtime::{CriVersion, FakeRuntime};

const SOON: Duration = Duration::from_secs(10);

fn event(uid: &str) -> proto::ContainerEventResponse {
    let metadata = proto::PodSandboxMetadata { uid: uid.into(), ..Default::default() };
    let status = proto::PodSandboxStatus { metadata: Some(metadata), ..Default::default() };
    proto::ContainerEventResponse { pod_sandbox_status: Some(status), ..Default::default() }
}

#[tokio::test]
async fn other_calls_work_before_the_first_event() {
    let fake = FakeRuntime::start();
    let (send, events) = mpsc::channel(8);
    fake.script().events = Some(events);
    let cri = Cri::connect(fake.socket()).await.unwrap();
    let mut stream = cri.events().unwrap();
    assert!(timeout(Duration::from_millis(200), stream.next()).await.is_err(), "not even headers came");
    cri.list(&BTreeMap::new()).await.unwrap();
    send.send(Ok(proto::ContainerEventResponse::default())).await.unwrap();
    send.send(Ok(event("uid-1"))).await.unwrap();
    let uid = timeout(SOON, stream.next()).await.unwrap();
    assert_eq!(uid.as_deref(), Some("uid-1"), "and one that names no pod is passed over");
}

#[tokio::test]
async fn events_come_again_after_the_runtime_was_restarted() {
    let mut fake = FakeRuntime::start();
    let cri = Cri::connect(fake.socket()).await.unwrap();
    let mut stream = cri.events().unwrap();
    for uid in ["before", "after"] {
        let (send, events) = mpsc::channel(8);
        fake.script().events = Some(events);
        send.send(Ok(event(uid))).await.unwrap();
        assert_eq!(timeout(SOON, stream.next()).await.unwrap().as_deref(), Some(uid));
        fake.die();
        fake.serve(CriVersion::V1);
    }
}

#[tokio::test]
async fn a_runtime_without_events_is_asked_once() {
    let fake = FakeRuntime::start();
    fake.script().errors.insert("GetContainerEvents", Status::unimplemented("unknown method"));
    let cri = Cri::connect(fake.socket()).await.unwrap();
    let mut stream = cri.events().unwrap();
    assert_eq!(timeout(SOON, stream.next()).await.unwrap(), None);
    assert!(cri.events().is_none());
}
