//! `kubectl debug`.

use super::KubectlSession;
use crate::eventually;

/// An ephemeral container is started beside the others, and can be reached into.
pub async fn ephemeral_container(session: &KubectlSession) {
    let image = format!("--image={}", session.target.image);
    session.run_ok(&["debug", "web", &image, "--container=probe", "--", "sleep", "1000"]).await;
    let state = "jsonpath={.status.ephemeralContainerStatuses[?(@.name==\"probe\")].state.running.startedAt}";
    eventually("the ephemeral container runs", super::session::TIMEOUT, || async {
        let started = session.run_ok(&["get", "pod", "web", "-o", state]).await;
        if started.is_empty() {
            Err(session.run_ok(&["get", "pod", "web", "-o", "yaml"]).await)
        } else {
            Ok(())
        }
    })
    .await;
    assert_eq!(session.run_ok(&["exec", "web", "-c", "probe", "--", "echo", "within"]).await, "within\n");
    let log = session.run(&["logs", "web", "-c", "probe"]).await;
    assert!(log.success(), "{log:?}");
}
