//! A process whose lease may have been taken over.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};
use serde_json::json;
use tokio::time::Instant;
use vk_kube::{Fence, fence::Deadline};
use vk_supervisor::Clock;

use super::fixture::{PodFixture, Setup, is_running, reference, uid};

/// Long enough for what must not happen to happen.
const A_WHILE: Duration = Duration::from_secs(2);

fn open(fence: &Fence) {
    let time = Duration::from_mins(5);
    fence.set(Some(Deadline { steady: Instant::now() + time, wall: Clock::system().now() + time }));
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn pods_are_left_alone_while_the_fence_is_closed_and_taken_up_when_it_opens() {
    let fixture = PodFixture::admin("fence").await;
    let mock = fixture.mock();
    let fence = Fence::default();
    let run = fixture.start_with(mock.clone(), Setup { fence: Some(fence.clone()), ..Setup::default() });
    let pod = fixture.create("pod", json!({})).await;
    let other = fixture.create("other", json!({"spec": {"restartPolicy": "Never"}})).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(run.recorder.creates(uid(&pod)), 0);
    assert_eq!(fixture.get("pod").await.unwrap().metadata.resource_version, pod.metadata.resource_version);

    open(&fence);
    fixture.see("pod", "a running pod", is_running).await;
    fixture.see("other", "a running pod", is_running).await;

    fence.set(None);
    fixture.delete("pod", Some(1)).await;
    mock.finish(&reference(&other), "main", 0).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert!(run.recorder.deletes(uid(&pod)).is_empty());
    assert!(is_running(&fixture.get("other").await.unwrap()), "nobody has written that it ended");

    open(&fence);
    fixture.see_gone(&pod).await;
    fixture.see("other", "the end", |pod| super::fixture::phase(pod) == "Succeeded").await;
    for one in [&pod, &other] {
        assert_eq!(mock.creations(uid(one)).await.unwrap(), 1);
    }
    // It is nobody's fault, and no news.
    let events: Api<Event> = Api::namespaced(fixture.cluster.admin().unwrap(), &fixture.namespace);
    let all = events.list(&ListParams::default()).await.unwrap().items;
    let warnings: Vec<_> = all.iter().filter(|event| event.type_.as_deref() == Some("Warning")).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
}
