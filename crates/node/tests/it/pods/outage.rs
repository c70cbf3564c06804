//! An API server that goes away and comes back.

use serde_json::json;
use vk_testing::{ControlPlane, control_plane::Options};

use super::fixture::{PodFixture, container, is_running, phase, reference, see_stopped, uid, until};
use crate::harness::Who;

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn what_happens_while_the_api_server_is_away_is_made_up_for() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let fixture = PodFixture::on(&cluster, Who::Node, "outage").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let job = fixture.create_running("job", json!({"spec": {"restartPolicy": "Never"}})).await;
    let lost = fixture.create_running("lost", json!({})).await;
    let old = fixture.create_running("namesake", json!({})).await;
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/stop-delay": "1h"}}});
    let ending = fixture.create_running("ending", script).await;
    fixture.delete("ending", Some(600)).await;
    until("a stop", || run.recorder.deletes(uid(&ending)), |graces| graces.len() == 1).await;

    cluster.kill_api_server().await.unwrap();
    mock.finish(&reference(&job), "main", 0).await.unwrap();
    mock.finish(&reference(&ending), "main", 0).await.unwrap();
    mock.vanish(&reference(&lost)).await.unwrap();
    // The backend needs no API server.
    until("another create", || run.recorder.creates(uid(&lost)), |count| *count == 2).await;
    cluster.start_api_server().await.unwrap();
    // The watch is still cut, or just coming back.
    fixture.delete("namesake", Some(0)).await;
    let new = fixture.create("namesake", json!({})).await;

    fixture.see("job", "the end", |pod| phase(pod) == "Succeeded").await;
    fixture.see_gone(&ending).await;
    let started = |pod: &_| container(pod, "main").state.unwrap_or_default().running.is_some();
    fixture.see("lost", "another life", |pod| is_running(pod) && started(pod)).await;
    let pod = fixture.see("namesake", "a running pod", is_running).await;
    assert_eq!(uid(&pod), uid(&new));
    see_stopped(&mock, &old).await;
    for (pod, count) in [(&job, 1), (&lost, 2), (&old, 1), (&new, 1), (&ending, 1)] {
        assert_eq!(mock.creations(uid(pod)).await.unwrap(), count);
    }
    assert!(run.recorder.deletes(uid(&new)).is_empty());
}
