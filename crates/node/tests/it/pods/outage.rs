//! An API server that goes away and comes back.

use serde_json::json;
use vk_testing::{ControlPlane, control_plane::Options};

use super::stage::{Stage, container, is_running, phase, reference, see_stopped, uid, until};
use crate::harness::Who;

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn what_happens_while_the_api_server_is_away_is_made_up_for() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let stage = Stage::on(&cluster, Who::Node, "outage").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let job = stage.create_running("job", json!({"spec": {"restartPolicy": "Never"}})).await;
    let lost = stage.create_running("lost", json!({})).await;
    let old = stage.create_running("namesake", json!({})).await;
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/stop-delay": "1h"}}});
    let ending = stage.create_running("ending", script).await;
    stage.delete("ending", Some(600)).await;
    until("a stop", || run.spy.deletes(uid(&ending)), |graces| graces.len() == 1).await;

    cluster.kill_api_server().await.unwrap();
    mock.finish(&reference(&job), "main", 0).await.unwrap();
    mock.finish(&reference(&ending), "main", 0).await.unwrap();
    mock.vanish(&reference(&lost)).await.unwrap();
    // The backend needs no API server.
    until("another create", || run.spy.creates(uid(&lost)), |count| *count == 2).await;
    cluster.start_api_server().await.unwrap();
    // The watch is still cut, or just coming back.
    stage.delete("namesake", Some(0)).await;
    let new = stage.create("namesake", json!({})).await;

    stage.see("job", "the end", |pod| phase(pod) == "Succeeded").await;
    stage.see_gone(&ending).await;
    let started = |pod: &_| container(pod, "main").state.unwrap_or_default().running.is_some();
    stage.see("lost", "another life", |pod| is_running(pod) && started(pod)).await;
    let pod = stage.see("namesake", "a running pod", is_running).await;
    assert_eq!(uid(&pod), uid(&new));
    see_stopped(&mock, &old).await;
    for (pod, count) in [(&job, 1), (&lost, 2), (&old, 1), (&new, 1), (&ending, 1)] {
        assert_eq!(mock.creations(uid(pod)).await.unwrap(), count);
    }
    assert!(run.spy.deletes(uid(&new)).is_empty());
}
