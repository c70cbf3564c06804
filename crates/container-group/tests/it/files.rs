//! Files that change: replaced in the running group, also when an earlier process has created it.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use vk_container_group::{
    backend::{Action, Class},
    conformance::{CaseContext, Node, TestCloud as _, pod_with_secret, reference},
    engine::FileUpdates,
    fake::{FakeCloud, Fault},
};
use vk_provider::{
    error::Kind,
    resolve::{File, FileSet, Origin},
};
use vk_supervisor::Supervisor;

use super::support::{cloud_with, create, set_image};

const SECOND: Duration = Duration::from_secs(1);

fn files(content: &'static str) -> FileSet {
    let file = File::new(content, 0o600, Origin::Secret);
    FileSet { files: [("token".to_owned(), file)].into(), expires: None }
}

/// A node that replaces files.
fn replacing(context: &CaseContext<FakeCloud>) -> Node<FakeCloud> {
    let supervisor = Supervisor::new();
    let budget = Node::<FakeCloud>::budget(&supervisor, 1000.0, 1000.0);
    Node::start_with(context, "vk", budget, supervisor, |settings| {
        settings.file_updates = FileUpdates::Replace;
    })
}

/// A pod that runs with the first files, and the next process.
async fn after_a_restart(context: &CaseContext<FakeCloud>) -> (Node<FakeCloud>, Pod) {
    let node = replacing(context);
    node.files.send_replace(files("first"));
    let pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    node.kill().await;
    tokio::time::sleep(60 * SECOND).await;
    (replacing(context), pod)
}

#[tokio::test(start_paused = true)]
async fn files_that_change_are_replaced_where_the_settings_and_the_cloud_allow_it() {
    let context = cloud_with(FakeCloud::all_caps());
    let node = replacing(&context);
    let expires = Some(context.clock.now() + jiff::SignedDuration::from_hours(1));
    let files = |content: &'static str| FileSet { expires, ..files(content) };
    node.files.send_replace(files("first"));
    let pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    let updates = || context.cloud.calls(Action::Update);
    assert_eq!(updates(), 0);
    node.files.send_replace(files("second"));
    node.until("the files are replaced", async || node.reasons(&pod).contains(&"FilesUpdated".to_owned()))
        .await;
    assert_eq!(updates(), 1);
    context.cloud.fail(Action::Update, Fault::Refused(Class::Unavailable));
    node.files.send_replace(files("third"));
    node.until("they are replaced after a failure", async || updates() == 3).await;
    context.cloud.fail(Action::Update, Fault::Refused(Class::Invalid));
    node.files.send_replace(files("fourth"));
    node.until("a refusal is an event", async || node.reasons(&pod).contains(&"FilesNotUpdated".to_owned()))
        .await;
    assert_eq!(updates(), 4);
    assert!(!node.reasons(&pod).contains(&"TokenNotRenewed".to_owned()), "tokens are renewed");
    node.end_session().await;
    node.files.send_replace(files("fifth"));
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(updates(), 4, "a process that does not own the node writes nothing");
}

#[tokio::test(start_paused = true)]
async fn files_that_change_after_a_restart_are_replaced() {
    let context = cloud_with(FakeCloud::all_caps());
    let (node, pod) = after_a_restart(&context).await;
    node.files.send_replace(files("first"));
    node.create(&pod).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(context.cloud.calls(Action::Update), 0, "nothing has changed");
    node.files.send_replace(files("second"));
    node.until("the files are replaced", async || node.reasons(&pod) == ["FilesUpdated"]).await;
    assert_eq!(context.cloud.calls(Action::Update), 1);
}

/// It may be about to expire: when it was made is not known.
#[tokio::test(start_paused = true)]
async fn a_token_is_replaced_right_after_a_restart_and_then_with_each_new_one() {
    let context = cloud_with(FakeCloud::all_caps());
    let token = |content| {
        let expires = Some(context.clock.now() + jiff::SignedDuration::from_hours(1));
        FileSet { expires, ..files(content) }
    };
    let (node, pod) = after_a_restart(&context).await;
    node.files.send_replace(token("other"));
    node.create(&pod).await;
    node.until("the token is replaced", async || context.cloud.calls(Action::Update) == 1).await;
    tokio::time::sleep(60 * SECOND).await;
    node.files.send_replace(token("next"));
    node.until("and the next one", async || context.cloud.calls(Action::Update) == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_had_to_wait_for_its_turn_is_watched_too() {
    let context = cloud_with(FakeCloud::all_caps());
    let supervisor = Supervisor::new();
    let budget = Node::<FakeCloud>::budget(&supervisor, 0.01, 2.0);
    let node = Arc::new(Node::start_as(&context, "vk", budget, supervisor));
    node.pods().await.unwrap();
    node.files.send_replace(files("first"));
    let pods: Vec<Pod> = (1..=5).map(|number| pod_with_secret("web", number, context.clock.now())).collect();
    let results = join_all(pods.iter().map(|pod| create(&node, pod))).await;
    let is_late = |result: &Result<(), vk_provider::Error>| {
        result.as_ref().is_err_and(|error| matches!(error.kind(), Kind::Throttled { .. }))
    };
    let at = results.iter().position(is_late).expect("a pod has to wait");
    let late = &pods[at];
    // It changes before the core asks again: the group has the files that it was to be made with.
    node.files.send_replace(files("second"));
    let limit = 3600 * SECOND;
    node.until_within(limit, "it is created", async || create(&node, late).await.is_ok()).await;
    node.until("the change is told", async || node.reasons(late) == ["FilesNotUpdated"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_update_for_which_a_secret_is_missing_does_not_refuse_a_pod_that_is_adopted() {
    let context = cloud_with(FakeCloud::all_caps());
    let (node, mut pod) = after_a_restart(&context).await;
    node.found.send_replace(false);
    set_image(&mut pod, "image:2");
    create(&node, &pod).await.unwrap();
    node.phase(&pod, "Running").await;
    assert_eq!(node.reasons(&pod), ["ProviderUpdateUnsupported"]);
    let groups = context.cloud.groups();
    assert_eq!((groups.len(), &*groups[0].owner.pod.uid), (1, &*reference(&pod).uid));
}

/// What this cloud cannot change is not said to be done because the files were replaced.
#[tokio::test(start_paused = true)]
async fn replacing_files_does_not_hide_a_change_that_cannot_be_made() {
    let context = cloud_with(FakeCloud::all_caps());
    let node = replacing(&context);
    node.files.send_replace(files("first"));
    let mut pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(3600);
    let refused = super::support::update(&node, &pod).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Unsupported);
    node.files.send_replace(files("second"));
    node.until("the files are replaced", async || context.cloud.calls(Action::Update) == 1).await;
    let refused = super::support::update(&node, &pod).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Unsupported);
}
