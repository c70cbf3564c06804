//! Two pods with the same name are two pods.

use std::time::Duration;

use serde_json::json;

use super::fixture::{PodFixture, Setup, is_running, see_stopped, uid, until};

/// Beside a running controller: the old one is still stopping when the new one comes.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_namesake_that_comes_while_the_old_one_stops_is_another_pod() {
    let fixture = PodFixture::admin("namesake").await;
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/stop-delay": "1h"}}});
    let old = fixture.create_running("web", script).await;
    fixture.delete("web", Some(600)).await;
    until("a stop", || run.recorder.deletes(uid(&old)), |graces| graces.len() == 1).await;
    fixture.delete("web", Some(0)).await;
    let new = fixture.create_running("web", json!({})).await;
    assert_ne!(uid(&old), uid(&new));
    see_stopped(&mock, &old).await;
    assert!(is_running(&fixture.get("web").await.unwrap()));
    assert_eq!(mock.creations(uid(&old)).await.unwrap(), 1);
    assert_eq!(mock.creations(uid(&new)).await.unwrap(), 1);
    assert!(run.recorder.deletes(uid(&new)).is_empty());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_namesake_that_came_while_no_controller_ran_is_another_pod() {
    let fixture = PodFixture::admin("downtime").await;
    let first = fixture.mock();
    let run = fixture.start(first.clone());
    let old = fixture.create_running("web", json!({})).await;
    run.stop().await;
    fixture.delete("web", Some(0)).await;
    let new = fixture.create("web", json!({})).await;

    let mock = fixture.mock();
    let setup = Setup { compare: Duration::from_millis(200), ..Setup::default() };
    let run = fixture.start_with(mock.clone(), setup);
    let pod = fixture.see("web", "a running pod", is_running).await;
    assert_eq!(uid(&pod), uid(&new));
    see_stopped(&mock, &old).await;
    assert_eq!(mock.creations(uid(&old)).await.unwrap(), 1);
    assert_eq!(mock.creations(uid(&new)).await.unwrap(), 1);
    assert!(run.recorder.deletes(uid(&new)).is_empty());
    assert!(is_running(&fixture.get("web").await.unwrap()));
}
