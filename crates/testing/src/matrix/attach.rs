//! `kubectl attach`.

use super::Stage;

/// What the container writes is seen by whoever is attached, and the container goes on when they leave.
pub async fn output(stage: &Stage) {
    let mut attached = stage.start(&["attach", "web", "-c", "main"]);
    let mut seen = 0;
    attached
        .line("two lines", |_| {
            seen += 1;
            (seen > 1).then_some(())
        })
        .await;
    attached.kill().await;
    let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
    assert_eq!(stage.good(&["get", "pod", "web", "-o", restarts]).await, "0");
}
