//! Lists are streamed where the API server can, and paged where it cannot.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use vk_testing::{ControlPlane, control_plane, eventually};

use super::fixture::{PodFixture, is_running, uid, until};
use crate::harness::{SOON, Who};

/// What the API server was asked about pods in bulk, as it was asked.
fn reads(cluster: &ControlPlane, of: &str) -> Vec<String> {
    let audit = std::fs::read_to_string(cluster.audit_log().unwrap()).unwrap_or_default();
    let all = audit.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let bulk = all.filter(|event| event["verb"] == "watch" || event["verb"] == "list");
    bulk.filter_map(|event| event["requestURI"].as_str().map(str::to_owned))
        .filter(|uri| uri.contains("/pods?") && uri.contains(of))
        .collect()
}

async fn a_pod_lives(fixture: &PodFixture<'_>) {
    let mock = fixture.mock();
    let run = fixture.start(mock.clone());
    let before = fixture.create_running("before", json!({})).await;
    run.stop().await;
    let run = fixture.start(mock);
    until("adoption", || run.recorder.creates(uid(&before)), |count| *count == 1).await;
    let pod: Pod = fixture.create_running("after", json!({})).await;
    assert!(is_running(&pod));
    fixture.delete("before", None).await;
    fixture.see_gone(&before).await;
    assert_eq!(run.requests("watch", "pods"), 0, "the watch had no trouble");
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn listings_are_streamed_and_on_a_server_that_does_not_stream_they_come_in_pages() {
    for (streams, gate) in [(true, "WatchList=true"), (false, "WatchList=false")] {
        let options = control_plane::Options {
            audit_policy: Some(control_plane::AUDIT_METADATA.to_owned()),
            extra_api_server_args: vec![format!("--feature-gates={gate}")],
            ..control_plane::Options::default()
        };
        let cluster = ControlPlane::start(options).await.unwrap();
        let fixture = PodFixture::on(&cluster, Who::Admin, "streamed").await;
        a_pod_lives(&fixture).await;
        let asked = eventually("the audit", SOON, || async {
            let asked = reads(&cluster, &fixture.node);
            if asked.is_empty() { Err("nothing yet") } else { Ok(asked) }
        })
        .await;
        assert!(asked.iter().any(|uri| uri.contains("sendInitialEvents=true")), "{gate}: {asked:#?}");
        assert_eq!(asked.iter().any(|uri| uri.contains("limit=500")), !streams, "{gate}: {asked:#?}");
    }
}
