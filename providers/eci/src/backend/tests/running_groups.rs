//! What becomes of groups after their creation, with the emulator on a virtual clock.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Container, ContainerState, Pod};
use tokio::time::Instant;
use vk_container_group::{
    backend::Action,
    conformance::{self, CaseContext, Node, TestCloud as _, pod_with_secret, reference},
    engine::FileUpdates,
};
use vk_provider::resolve::{File, FileSet, Origin};
use vk_supervisor::Supervisor;
use vk_testing::cloud::eci::Script;

use super::conformance::EmulatedCloud;

const SECOND: Duration = Duration::from_secs(1);
/// How late a change may be seen while something is in progress.
const LATE: Duration = Duration::from_secs(3);

type Context = CaseContext<EmulatedCloud>;

fn pod(context: &Context, init: &[&str]) -> Pod {
    let mut pod = conformance::pod("web", 1, context.clock.now());
    let containers = init.iter().map(|name| Container {
        name: (*name).to_owned(),
        image: Some("image:1".to_owned()),
        ..Container::default()
    });
    pod.spec.as_mut().unwrap().init_containers = Some(containers.collect()).filter(|_| !init.is_empty());
    pod
}

/// The state of an init container, as the core was told.
fn init_state(node: &Node<EmulatedCloud>, pod: &Pod, at: usize) -> ContainerState {
    let journal = node.journal.lock();
    let status = journal.statuses.get(&reference(pod).uid);
    let containers = status.and_then(|status| status.init_container_statuses.as_ref());
    containers.and_then(|all| all.get(at)?.state.clone()).unwrap_or_default()
}

#[test]
fn the_states_of_init_containers_are_seen_within_seconds() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            // Scheduled after 2 s, and pulled 3 s later.
            context.cloud.emulator().change_settings(|settings| {
                settings.script = Arc::new(|container| {
                    let runs = match container["Name"].as_str() {
                        Some("first") => Some(6),
                        Some("second") => Some(40),
                        _ => None,
                    };
                    let exit = runs.map(|runs| (runs * SECOND, 0));
                    Script { exit, ..Script::default() }
                });
            });
            let node = Node::start(&context);
            let pod = pod(&context, &["first", "second"]);
            node.create(&pod).await;
            let begin = Instant::now();
            let seen = async |after: u32, what: &str, is_seen: &dyn Fn() -> bool| {
                node.until(what, async || is_seen()).await;
                let took = begin.elapsed();
                assert!(took <= after * SECOND + LATE, "{what} after {after} s is seen after {took:?}");
            };
            seen(5, "the first runs", &|| init_state(&node, &pod, 0).running.is_some()).await;
            seen(11, "the first has ended", &|| init_state(&node, &pod, 0).terminated.is_some()).await;
            seen(11, "the second runs", &|| init_state(&node, &pod, 1).running.is_some()).await;
            seen(51, "the second has ended", &|| init_state(&node, &pod, 1).terminated.is_some()).await;
            node.phase(&pod, "Running").await;
            assert!(begin.elapsed() <= 51 * SECOND + LATE, "it runs after {:?}", begin.elapsed());
            let details = context.cloud.calls(Action::Detail);
            assert!(details <= 40, "{details} calls for the details of one pod");
        })
    });
}

#[test]
fn a_pod_without_init_containers_needs_its_details_once() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            let pod = pod(&context, &[]);
            node.create(&pod).await;
            node.phase(&pod, "Running").await;
            tokio::time::sleep(10 * SECOND).await;
            assert_eq!(context.cloud.calls(Action::Detail), 1);
        })
    });
}

#[test]
fn a_group_that_stops_slowly_is_asked_for_only_when_the_feed_shows_it_no_more() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            context.cloud.emulator().change_settings(|settings| {
                settings.timing.stopping = SignedDuration::from_secs(10);
            });
            let node = Node::start(&context);
            let pods: Vec<Pod> =
                (1..=2).map(|number| conformance::pod("web", number, context.clock.now())).collect();
            for pod in &pods {
                node.create(pod).await;
            }
            for pod in &pods {
                node.phase(pod, "Running").await;
            }
            tokio::time::sleep(10 * SECOND).await;
            let before = context.cloud.calls(Action::Detail);
            let begin = Instant::now();
            node.delete(&pods[0]).await;
            let (took, asked) = (begin.elapsed(), context.cloud.calls(Action::Detail) - before);
            assert!(took >= 10 * SECOND && took <= 14 * SECOND, "gone after {took:?}");
            assert!((1..=3).contains(&asked), "{asked} calls");
        })
    });
}

fn files(content: &'static str) -> FileSet {
    let file = File::new(content, 0o600, Origin::Secret);
    FileSet { files: [("password".to_owned(), file)].into(), expires: None }
}

/// A pod with a volume that a container mounts.
fn pod_with_files(context: &Context) -> Pod {
    let mut pod = pod_with_secret("web", 1, context.clock.now());
    let mount = serde_json::json!([{"name": "secret", "mountPath": "/secret"}]);
    let containers = &mut pod.spec.as_mut().unwrap().containers;
    containers[0].volume_mounts = serde_json::from_value(mount).unwrap();
    pod
}

#[test]
fn files_that_change_are_replaced_in_the_running_group_if_the_configuration_says_so() {
    let open = |clock| EmulatedCloud::start_with(clock, true, false);
    conformance::check(open, |context| {
        Box::pin(async move {
            let supervisor = Supervisor::new();
            let budget = Node::<EmulatedCloud>::budget(&supervisor, 1000.0, 1000.0);
            let node = Node::start_with(&context, "vk", budget, supervisor, |settings| {
                settings.file_updates = FileUpdates::Replace;
            });
            node.files.send_replace(files("first"));
            let pod = pod_with_files(&context);
            node.create(&pod).await;
            node.phase(&pod, "Running").await;
            node.files.send_replace(files("second"));
            let said = async || node.reasons(&pod).contains(&"FilesUpdated".to_owned());
            node.until("the files are replaced", said).await;
            let sent = context.cloud.emulator().last_request("UpdateContainerGroup").unwrap();
            let parameter = |name: &str| sent.parameters.get(name).map(String::as_str);
            assert_eq!(parameter("UpdateType"), Some("IncrementalUpdate"));
            assert_eq!(parameter("Volume.1.Name"), Some("secret"));
            let file = "Volume.1.ConfigFileVolume.ConfigFileToPath.1";
            assert_eq!(parameter(&format!("{file}.Path")), Some("password"));
            assert_eq!(parameter(&format!("{file}.Content")), Some("c2Vjb25k"));
            assert_eq!((context.cloud.calls(Action::Update), context.cloud.failed_calls()), (1, 0));
            let groups = context.cloud.of_pod(&reference(&pod).uid);
            assert_eq!(groups.len(), 1, "it is the same group");
        })
    });
}

#[test]
fn files_are_kept_otherwise() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            node.files.send_replace(files("first"));
            let pod = pod_with_files(&context);
            node.create(&pod).await;
            node.phase(&pod, "Running").await;
            node.files.send_replace(files("second"));
            let said = async || node.reasons(&pod).contains(&"FilesNotUpdated".to_owned());
            node.until("an event says so", said).await;
            assert_eq!(context.cloud.calls(Action::Update), 0);
        })
    });
}
