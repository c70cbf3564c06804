//! Changes of pods and of their files, also across restarts.

use std::time::Duration;

use bytes::Bytes;
use jiff::SignedDuration;
use tokio::time::sleep;
use vk_provider::{
    Provider as _,
    error::Kind,
    resolve::{File, FileSet, Origin},
};

use crate::{
    GroupBackend as _,
    backend::Action,
    conformance::{
        CaseContext, Node, TestCloud,
        pod::{pod, pod_with_secret},
    },
};

const SECOND: Duration = Duration::from_secs(1);

fn files(content: &'static str) -> FileSet {
    let file = File {
        content: Bytes::from_static(content.as_bytes()),
        mode: 0o600,
        owner: None,
        origin: Origin::Secret,
    };
    FileSet { files: [("password".to_owned(), file)].into(), expires: None }
}

pub(crate) async fn secret_rotation<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    node.files.send_replace(files("hunter1"));
    let pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    for content in ["hunter2", "hunter3"] {
        node.files.send_replace(files(content));
        sleep(10 * SECOND).await;
    }
    assert_eq!(node.reasons(&pod), ["FilesNotUpdated"], "one event for each volume");
    let told = format!("{:?}", node.journal.lock());
    assert!(!told.contains("hunter"), "nothing secret is told");
}

pub(crate) async fn secret_rotation_after_a_restart<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    node.files.send_replace(files("hunter1"));
    let pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    node.kill().await;
    let node = Node::start(context);
    // The Secret is gone: the pod runs all the same.
    node.found.send_replace(false);
    let adopted = node.engine.create_pod(node.bundle(&pod)).await;
    assert!(adopted.is_ok(), "{adopted:?}");
    node.phase(&pod, "Running").await;
    node.files.send_replace(files("hunter1"));
    node.found.send_replace(true);
    sleep(30 * SECOND).await;
    assert_eq!(node.reasons(&pod), [""; 0], "nothing has changed");
    for content in ["hunter2", "hunter3"] {
        node.files.send_replace(files(content));
        sleep(10 * SECOND).await;
    }
    assert_eq!(node.reasons(&pod), ["FilesNotUpdated"], "one event for each volume");
    assert_eq!(context.cloud.calls(Action::Create), 1);
}

pub(crate) async fn token_expiry<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let expires = context.clock.now() + SignedDuration::from_hours(1);
    node.files.send_replace(FileSet { expires: Some(expires), ..FileSet::default() });
    let pod = pod_with_secret("web", 1, context.clock.now());
    node.create(&pod).await;
    node.until("the warning", async || node.reasons(&pod).contains(&"TokenNotRenewed".to_owned())).await;
    let said = node.journal.lock().events.iter().any(|event| event.message.contains(&expires.to_string()));
    assert!(said, "it says when");
}

pub(crate) async fn token_expiry_after_a_restart<C: TestCloud>(context: &CaseContext<C>) {
    let token = |minutes: i64| {
        let expires = context.clock.now() + SignedDuration::from_mins(minutes);
        FileSet { expires: Some(expires), ..files("token") }
    };
    let node = Node::start(context);
    node.files.send_replace(token(60));
    let pod = pod_with_secret("web", 1, context.clock.now());
    let latest = context.clock.now() + SignedDuration::from_mins(62);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    node.kill().await;
    sleep(1800 * SECOND).await;
    let node = Node::start(context);
    node.files.send_replace(token(60));
    node.create(&pod).await;
    node.until("the warning", async || node.reasons(&pod) == ["TokenNotRenewed"]).await;
    let message = node.journal.lock().events[0].message.clone();
    let told = message.split("expires at ").nth(1).and_then(|rest| rest.split(' ').next());
    let told: Option<jiff::Timestamp> = told.and_then(|time| time.parse().ok());
    assert!(told.is_some_and(|told| told <= latest), "the token is as old as the group: {message}");
}

pub(crate) async fn update_made_once_across_restarts<C: TestCloud>(context: &CaseContext<C>) {
    let node = Node::start(context);
    let mut pod = pod("web", 1, context.clock.now());
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    // The feed and the lists may not have shown the tags yet.
    sleep(30 * SECOND).await;
    if let Some(spec) = &mut pod.spec {
        spec.containers[0].image = Some("image:2".to_owned());
    }
    let updated = node.engine.update_pod(node.bundle(&pod)).await;
    if !context.cloud.backend().caps().updates.images {
        assert!(updated.is_err_and(|error| *error.kind() == Kind::Unsupported));
        return;
    }
    assert!(updated.is_ok(), "{updated:?}");
    let mut node = node;
    for _ in 0..2 {
        sleep(60 * SECOND).await;
        node.kill().await;
        node = Node::start(context);
        node.create(&pod).await;
        sleep(60 * SECOND).await;
        assert_eq!(context.cloud.calls(Action::Update), 1, "it was made already");
    }
    let groups = context.cloud.seen_groups();
    assert_eq!((groups.len(), &groups[0].owner.pod.name), (1, &"web".into()), "the other tags stay");
}
