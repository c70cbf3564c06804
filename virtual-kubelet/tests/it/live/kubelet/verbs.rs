//! One quick look at each verb; `make e2e-kubectl` has the whole matrix.

use vk_testing::{ControlPlane, matrix};

use super::Served;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kubectl_logs_has_every_option() {
    let served = Served::start(ControlPlane::shared().await, "kubectl-logs", &[]).await;
    let stage = served.stage().await;
    matrix::logs::whole_tail_and_limit(&stage).await;
    matrix::logs::times_and_since(&stage).await;
    matrix::logs::follow(&stage).await;
    matrix::logs::previous(&stage).await;
    matrix::logs::refusals(&stage).await;
    stage.close().await;
}
