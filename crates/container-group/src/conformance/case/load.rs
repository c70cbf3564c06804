//! Many groups, few calls.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep};

use crate::{
    GroupBackend as _,
    backend::{Action, Class, Rate},
    conformance::{
        CaseContext, Node, TestCloud,
        pod::{pod, reference},
    },
};

const SECOND: Duration = Duration::from_secs(1);
/// How long groups are idle, in minutes.
const IDLE_MINUTES: &str = "VK_IDLE_MINUTES";

pub(crate) async fn thousand_pods_under_a_10_rps_budget<C: TestCloud>(context: &CaseContext<C>) {
    context.cloud.set_start(20 * SECOND);
    let supervisor = vk_supervisor::Supervisor::new();
    let budget = Node::<C>::budget(&supervisor, 10.0, 20.0);
    // A cloud that allows hardly more.
    context.cloud.faults().limit(Rate { per_second: 10.5, burst: 21.0 });
    let node = Node::start_as(context, "vk", budget, supervisor);
    let pods = thousand_pods(context);
    let begin = Instant::now();
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    let took = begin.elapsed();
    assert!(took <= 115 * SECOND + 20 * SECOND, "all run after {took:?}");
    sleep(600 * SECOND).await;
    futures::future::join_all(pods.iter().map(|pod| node.delete(pod))).await;
    assert!(context.cloud.seen_groups().is_empty());
    let calls = context.cloud.total_calls();
    // Without a feed each poll reads all pages, also while nothing happens.
    let most = if context.cloud.backend().caps().feed { 2300 } else { 2400 };
    assert!(calls <= most, "{calls} calls in the lives of 1,000 pods");
    let writes = (context.cloud.calls(Action::Create), context.cloud.calls(Action::Delete));
    assert_eq!((writes, context.cloud.failed_calls()), ((1000, 1000), 0));
}

pub(crate) async fn thousand_idle_groups<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pods = thousand_pods(context);
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    sleep(300 * SECOND).await;
    let before = context.cloud.total_calls();
    let minutes = idle_minutes();
    sleep(minutes * 60 * SECOND).await;
    let calls = context.cloud.total_calls() - before;
    // Half a call per second.
    assert!(calls <= u64::from(minutes) * 30, "{calls} calls in {minutes} minutes");
    context.cloud.preempt(&reference(&pods[0]).uid);
    let begin = Instant::now();
    node.phase(&pods[0], "Failed").await;
    assert!(begin.elapsed() <= 35 * SECOND, "visible after {:?}", begin.elapsed());
}

pub(crate) async fn change_among_thousand_groups<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let pods = thousand_pods(context);
    futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    sleep(300 * SECOND).await;
    // Something else is in progress.
    context.cloud.set_start(600 * SECOND);
    node.create(&pod("other", 1001, context.clock.now())).await;
    sleep(30 * SECOND).await;
    context.cloud.preempt(&reference(&pods[1]).uid);
    let begin = Instant::now();
    node.phase(&pods[1], "Failed").await;
    // Without a feed each poll reads all pages.
    let most = if context.cloud.backend().caps().feed { 3 } else { 10 };
    assert!(begin.elapsed() <= most * SECOND, "visible after {:?}", begin.elapsed());
}

/// How long it takes until 1,000 pods run, and how many calls succeed until then.
async fn run_thousand_pods<C: TestCloud>(context: &CaseContext<C>, first: u32) -> (Duration, u64) {
    let supervisor = vk_supervisor::Supervisor::new();
    // The undisturbed run takes as long as the storm.
    let budget = Node::<C>::budget(&supervisor, 3.5, 7.0);
    let node = Node::start_as(context, &format!("vk-{first}"), budget, supervisor);
    let pods: Vec<Pod> = (first..first + 1000)
        .map(|number| pod(&format!("web-{number}"), number, context.clock.now()))
        .collect();
    let (begin, calls) = (Instant::now(), context.cloud.total_calls() - context.cloud.failed_calls());
    let created = futures::future::join_all(pods.iter().map(|pod| node.create(pod)));
    let all_run = node.until("all run", async || {
        let journal = node.journal.lock();
        let running = journal.statuses.values().filter(|status| status.phase.as_deref() == Some("Running"));
        running.count() == pods.len()
    });
    // A core whose call has timed out asks again later: the pods run by then.
    tokio::select! {
        () = all_run => {}
        () = async { created.await; std::future::pending().await } => {}
    }
    let result = (begin.elapsed(), context.cloud.total_calls() - context.cloud.failed_calls() - calls);
    assert_eq!(context.cloud.seen_groups().len(), 1000, "what succeeded was not repeated");
    for pod in &pods {
        context.cloud.vanish(&reference(pod).uid);
    }
    node.kill().await;
    result
}

pub(crate) async fn throttle_storm<C: TestCloud>(context: &CaseContext<C>) {
    let (undisturbed, calls) = run_thousand_pods(context, 1).await;
    context.cloud.faults().throttle_share(Some(0.5));
    let storm = async {
        sleep(300 * SECOND).await;
        context.cloud.faults().throttle_share(None);
    };
    let ((disturbed, more_calls), ()) = tokio::join!(run_thousand_pods(context, 2001), storm);
    assert!(disturbed <= 2 * undisturbed, "{disturbed:?} instead of {undisturbed:?}");
    assert!(disturbed > 300 * SECOND, "it lasts longer than the storm");
    assert!(more_calls * 10 <= calls * 11, "{more_calls} successful calls instead of {calls}");
}

pub(crate) async fn outage_with_thousand_pods<C: TestCloud>(context: &CaseContext<C>) {
    let supervisor = vk_supervisor::Supervisor::new();
    let budget = Node::<C>::budget(&supervisor, 10.0, 20.0);
    let node = Arc::new(Node::start_as(context, "vk", budget, supervisor));
    assert!(node.pods().await.is_ok());
    // Nobody knows what has become of the calls.
    context.cloud.faults().set_outage(Some(Class::Ambiguous));
    let pods = thousand_pods(context);
    let created = futures::future::join_all(pods.iter().map(|pod| node.create(pod)));
    let outage = async {
        sleep(240 * SECOND).await;
        context.cloud.faults().set_outage(None);
        // A cloud that has just come back allows no more than the budget.
        context.cloud.faults().limit(Rate { per_second: 10.5, burst: 21.0 });
        context.cloud.failed_calls()
    };
    let (_, failed) = tokio::join!(created, outage);
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    assert_eq!(context.cloud.failed_calls(), failed, "no call was too many when the cloud was back");
    assert_eq!(context.cloud.seen_groups().len(), 1000);
}

fn thousand_pods<C: TestCloud>(context: &CaseContext<C>) -> Vec<Pod> {
    (1..=1000).map(|number| pod(&format!("web-{number}"), number, context.clock.now())).collect()
}

fn idle_minutes() -> u32 {
    std::env::var(IDLE_MINUTES).ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}
