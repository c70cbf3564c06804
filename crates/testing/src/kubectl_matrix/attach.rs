//! `kubectl attach`.

use super::KubectlSession;

/// Attached clients see the container's output, and the container keeps running when they leave.
pub async fn output(session: &KubectlSession) {
    let mut attached = session.start(&["attach", "web", "-c", "main"]);
    let mut seen = 0;
    attached
        .line("two lines", |_| {
            seen += 1;
            (seen > 1).then_some(())
        })
        .await;
    attached.kill().await;
    let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
    assert_eq!(session.run_ok(&["get", "pod", "web", "-o", restarts]).await, "0");
}
