//! `kubectl debug`.

use super::Stage;
use crate::eventually;

/// An ephemeral container is started beside the others, and can be reached into.
pub async fn ephemeral_container(stage: &Stage) {
    let image = format!("--image={}", stage.subject.image);
    stage.good(&["debug", "web", &image, "--container=probe", "--", "sleep", "1000"]).await;
    let state = "jsonpath={.status.ephemeralContainerStatuses[?(@.name==\"probe\")].state.running.startedAt}";
    eventually("the ephemeral container runs", super::stage::PATIENCE, || async {
        let started = stage.good(&["get", "pod", "web", "-o", state]).await;
        if started.is_empty() { Err(stage.good(&["get", "pod", "web", "-o", "yaml"]).await) } else { Ok(()) }
    })
    .await;
    assert_eq!(stage.good(&["exec", "web", "-c", "probe", "--", "echo", "within"]).await, "within\n");
    let log = stage.run(&["logs", "web", "-c", "probe"]).await;
    assert!(log.success(), "{log:?}");
}
