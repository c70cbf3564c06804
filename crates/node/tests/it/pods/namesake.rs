//! Two pods of one name are two pods.

use std::time::Duration;

use serde_json::json;

use super::stage::{Setup, Stage, is_running, see_stopped, uid, until};

/// Beside a running controller: the old one is still stopping when the new one comes.
#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_namesake_that_comes_while_the_old_one_stops_is_another_pod() {
    let stage = Stage::admin("namesake").await;
    let mock = stage.mock();
    let run = stage.start(mock.clone());
    let script = json!({"metadata": {"annotations": {"mock.virtual-kubelet.io/stop-delay": "1h"}}});
    let old = stage.create_running("web", script).await;
    stage.delete("web", Some(600)).await;
    until("a stop", || run.spy.deletes(uid(&old)), |graces| graces.len() == 1).await;
    stage.delete("web", Some(0)).await;
    let new = stage.create_running("web", json!({})).await;
    assert_ne!(uid(&old), uid(&new));
    see_stopped(&mock, &old).await;
    assert!(is_running(&stage.get("web").await.unwrap()));
    assert_eq!(mock.creations(uid(&old)).await.unwrap(), 1);
    assert_eq!(mock.creations(uid(&new)).await.unwrap(), 1);
    assert!(run.spy.deletes(uid(&new)).is_empty());
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_namesake_that_came_while_no_controller_ran_is_another_pod() {
    let stage = Stage::admin("downtime").await;
    let first = stage.mock();
    let run = stage.start(first.clone());
    let old = stage.create_running("web", json!({})).await;
    run.stop().await;
    stage.delete("web", Some(0)).await;
    let new = stage.create("web", json!({})).await;

    let mock = stage.mock();
    let setup = Setup { compare: Duration::from_millis(200), ..Setup::default() };
    let run = stage.start_with(mock.clone(), setup);
    let pod = stage.see("web", "a running pod", is_running).await;
    assert_eq!(uid(&pod), uid(&new));
    see_stopped(&mock, &old).await;
    assert_eq!(mock.creations(uid(&old)).await.unwrap(), 1);
    assert_eq!(mock.creations(uid(&new)).await.unwrap(), 1);
    assert!(run.spy.deletes(uid(&new)).is_empty());
    assert!(is_running(&stage.get("web").await.unwrap()));
}
