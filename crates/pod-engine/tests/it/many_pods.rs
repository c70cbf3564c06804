//! Many pods at once.

use std::time::Duration;

use serde_json::json;
use vk_pod_engine::testing::Call;
use vk_provider::Provider;

use crate::support::{FOREVER, TestEngine, container, deleted, pod};

const MANY: usize = 120;

#[tokio::test(start_paused = true)]
async fn many_pods_run_and_cost_two_lists_a_second_when_nothing_happens() {
    let test = TestEngine::new();
    let mut made = Vec::new();
    for number in 0..MANY {
        let wanted = pod(&format!("pod-{number}"), json!({ "containers": [container("app", FOREVER)] }));
        made.push((test.create(&wanted).await, wanted));
    }
    for (pod, _) in &made {
        test.running(pod).await;
    }
    assert_eq!(test.runtime.containers().len(), MANY);
    assert_eq!(test.engine().pods().await.unwrap().len(), MANY);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let quiet = |call| (call, test.runtime.count(call));
    let before = [Call::List, Call::Container, Call::Sandbox].map(quiet);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let after = [Call::List, Call::Container, Call::Sandbox].map(quiet);
    assert!(after[0].1 - before[0].1 <= 32, "{before:?} {after:?}");
    assert_eq!(before[1..], after[1..], "nothing is asked in full");
    for (pod, wanted) in &made {
        let wanted = Some(deleted(wanted));
        test.engine().delete_pod(pod, wanted, Duration::from_secs(30)).await.unwrap();
    }
    for (pod, _) in &made {
        test.wait_finished(pod).await;
    }
    test.eventually("nothing is left", || test.runtime.sandboxes().is_empty()).await;
    assert_eq!(test.runtime.violations(), Vec::<String>::new());
}
