//! A short test of each kubectl command, over WebSocket and over SPDY; `make e2e-kubectl` runs the whole matrix.

use vk_testing::{ControlPlane, kubectl_matrix as matrix};

use super::{super::node, Served};

/// Flags for WebSockets all the way (default), and for SPDY between API server and node.
pub(super) const WAYS: [(&str, &[&str]); 2] = [("websocket", &[]), ("spdy", &["--stream-websockets=false"])];

/// A node for one command and transport; checks the declared feature.
pub(super) async fn served(verb: &str, way: (&str, &[&str])) -> Served<'static> {
    let cluster = ControlPlane::shared().await;
    let served = Served::start(cluster, &format!("{verb}-{}", way.0), way.1).await;
    let declared = node(cluster, &served.node).await["status"]["declaredFeatures"].to_string();
    assert_eq!(declared.contains("ExtendWebSocketsToKubelet"), way.0 == "websocket", "{declared}");
    served
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kubectl_exec_has_output_input_codes_and_a_terminal() {
    for way in WAYS {
        let served = served("exec", way).await;
        let stage = served.stage().await;
        matrix::exec::output_and_errors(&stage).await;
        matrix::exec::exit_codes(&stage).await;
        matrix::exec::input_until_its_end(&stage).await;
        matrix::exec::terminal(&stage).await;
        matrix::exec::refusals(&stage).await;
        stage.close().await;
        served.no_sessions().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kubectl_cp_copies_both_ways() {
    for way in WAYS {
        let served = served("cp", way).await;
        let stage = served.stage().await;
        matrix::copy::both_ways(&stage, 2 << 20).await;
        matrix::copy::missing_file(&stage).await;
        stage.close().await;
        served.no_sessions().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kubectl_attach_shows_what_the_container_writes() {
    for way in WAYS {
        let served = served("attach", way).await;
        let stage = served.stage().await;
        matrix::attach::output(&stage).await;
        stage.close().await;
        served.no_sessions().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kubectl_port_forward_forwards() {
    for way in WAYS {
        let served = served("forward", way).await;
        let stage = served.stage().await;
        matrix::forward::parallel_requests(&stage, 8080, 10).await;
        matrix::forward::much(&stage, 9000, 1 << 20).await;
        matrix::forward::refused_port(&stage, 1, 8080).await;
        stage.close().await;
        served.no_sessions().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn kubectl_debug_starts_a_container_beside() {
    let served = Served::start(ControlPlane::shared().await, "kubectl-debug", &[]).await;
    let stage = served.stage().await;
    matrix::debug::ephemeral_container(&stage).await;
    stage.close().await;
}
