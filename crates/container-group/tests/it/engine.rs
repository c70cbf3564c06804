//! What users see of the engine: stock, updates, logs, usage, commands, prices.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use futures::{StreamExt as _, future::join_all};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity as ApiQuantity};
use vk_container_group::{
    backend::{Action, Price},
    conformance::{CaseContext, Node, TestCloud as _, reference},
    fake::{FakeCloud, Fault},
};
use vk_provider::{
    Provider as _,
    ability::{ExecOptions, LogBody, LogOptions},
    error::Kind,
};
use vk_supervisor::{Clock, Supervisor};

use super::support::{create, new_pod, set_image, start, update};

const SECOND: Duration = Duration::from_secs(1);

fn with_zones(mut pod: Pod, zones: &str) -> Pod {
    pod.metadata.annotations = Some([("fake/zones".to_owned(), zones.to_owned())].into());
    pod
}

#[tokio::test(start_paused = true)]
async fn a_zone_without_stock_is_skipped_and_not_asked_again_for_the_next_pod() {
    let (context, node) = start().await;
    context.cloud.set(|behavior| behavior.sold_out = vec!["a".to_owned()]);
    create(&node, &with_zones(new_pod(&context, 1), "a,b")).await.unwrap();
    assert_eq!(context.cloud.calls(Action::Create), 2);
    let groups = context.cloud.seen_groups();
    assert_eq!(groups[0].owner.attempt, 2, "another request has another token and name");
    create(&node, &with_zones(new_pod(&context, 2), "a,b")).await.unwrap();
    assert_eq!(context.cloud.calls(Action::Create), 3);
    let refused = create(&node, &with_zones(new_pod(&context, 3), "a")).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Exhausted);
    assert!(refused.message().contains("no stock"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_image_is_changed_in_place_a_label_costs_no_call_and_the_rest_is_unsupported() {
    let (context, node) = start().await;
    let mut pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    pod.metadata.labels = Some([("tier".to_owned(), "web".to_owned())].into());
    let calls = context.cloud.total_calls();
    update(&node, &pod).await.unwrap();
    assert_eq!(context.cloud.total_calls(), calls);
    set_image(&mut pod, "image:2");
    update(&node, &pod).await.unwrap();
    assert_eq!(context.cloud.groups()[0].containers[0].1, "image:2");
    update(&node, &pod).await.unwrap();
    assert_eq!(context.cloud.calls(Action::Update), 1, "nothing has changed");
    let limits = [("cpu".to_owned(), ApiQuantity("2".to_owned()))].into();
    let resources = pod.spec.as_mut().unwrap().containers[0].resources.get_or_insert_default();
    resources.limits = Some(limits);
    let refused = update(&node, &pod).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Unsupported);
    assert!(refused.message().contains("spec.containers[*].resources"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_came_while_no_process_ran_is_made_when_the_pod_is_adopted() {
    let (context, node) = start().await;
    let mut pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    node.kill().await;
    set_image(&mut pod, "image:2");
    let node = Node::start(&context);
    node.create(&pod).await;
    assert_eq!(context.cloud.groups()[0].containers[0].1, "image:2");
    assert_eq!(context.cloud.calls(Action::Create), 1);
}

/// `kubectl debug`, or another deadline, and then a restart.
#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_made_does_not_refuse_a_pod_that_is_adopted() {
    let (context, node) = start().await;
    let mut pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(3600);
    let refused = update(&node, &pod).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Unsupported);
    node.kill().await;
    let node = Node::start(&context);
    create(&node, &pod).await.unwrap();
    node.phase(&pod, "Running").await;
    assert_eq!((context.cloud.groups().len(), context.cloud.calls(Action::Create)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_log_is_followed_without_loss_or_doubles_and_ends_with_the_container() {
    let (context, node) = start().await;
    let pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    (0..5).for_each(|number| context.cloud.log("web", "main", &format!("line {number}")));
    let options = LogOptions { follow: true, tail: Some(2), ..LogOptions::default() };
    let container = reference(&pod).container("main");
    let LogBody::Final(mut log) = node.engine.logs().unwrap().open(&container, &options).await.unwrap()
    else {
        panic!("all options are applied")
    };
    let mut text = Vec::new();
    for number in 5..50 {
        text.extend_from_slice(&log.next().await.unwrap().unwrap());
        // Several lines have the same time; some reads fail.
        context.cloud.log("web", "main", &format!("line {number}"));
        context.cloud.log("web", "main", &format!("line {number} again"));
        if number % 10 == 0 {
            context.cloud.fail(Action::Logs, Fault::AnswerLost);
        }
    }
    context.cloud.end(&reference(&pod).uid, 0);
    while let Some(chunk) = log.next().await {
        text.extend_from_slice(&chunk.unwrap());
    }
    let mut expected = "line 3\nline 4\n".to_owned();
    for number in 5..50 {
        writeln!(expected, "line {number}\nline {number} again").unwrap();
    }
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_log_of_a_container_that_has_not_started_is_unavailable() {
    let (context, node) = start().await;
    let pod = new_pod(&context, 1);
    context.cloud.set(|behavior| behavior.start = 60 * SECOND);
    node.create(&pod).await;
    node.phase(&pod, "Pending").await;
    let open = async |name: &str| {
        let container = reference(&pod).container(name);
        let opened = node.engine.logs().unwrap().open(&container, &LogOptions::default()).await;
        opened.err().map(|error| error.kind().clone())
    };
    node.until("it is seen", async || open("main").await == Some(Kind::Unavailable)).await;
    node.until("its containers are seen", async || open("other").await == Some(Kind::NotFound)).await;
}

#[tokio::test(start_paused = true)]
async fn many_readers_of_the_usage_cost_one_call_for_twenty_groups_and_fifteen_seconds() {
    let (context, node) = start().await;
    let pods: Vec<Pod> = (1..=45).map(|number| new_pod(&context, number)).collect();
    join_all(pods.iter().map(|pod| node.create(pod))).await;
    for pod in &pods {
        node.phase(pod, "Running").await;
    }
    // One batch fails, and only its pods are left out.
    context.cloud.fail(Action::Stats, Fault::AnswerLost);
    let stats = node.engine.stats().unwrap();
    let summaries = join_all((0..10).map(|_| stats.summary())).await;
    assert_eq!(context.cloud.calls(Action::Stats), 3);
    assert!(summaries.iter().all(|summary| summary.as_ref().unwrap().pods.len() == 25));
    tokio::time::advance(16 * SECOND).await;
    assert_eq!(stats.summary().await.unwrap().pods.len(), 45);
    assert_eq!(context.cloud.calls(Action::Stats), 6);
}

#[tokio::test(start_paused = true)]
async fn a_command_beyond_the_clouds_limits_is_invalid_and_names_the_word() {
    let (context, node) = start().await;
    let pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    let exec = node.engine.exec().unwrap();
    let container = reference(&pod).container("main");
    let run = async |command: &[String]| exec.start(&container, command, &ExecOptions::default()).await;
    assert!(run(&["ls".to_owned()]).await.is_ok());
    let many = vec!["x".to_owned(); 21];
    let refused = run(&many).await.unwrap_err();
    assert!(*refused.kind() == Kind::Invalid && refused.message().contains("21 words"), "{refused}");
    let refused = run(&["sh".to_owned(), "x".repeat(257)]).await.unwrap_err();
    assert!(*refused.kind() == Kind::Invalid && refused.message().contains("word 2"), "{refused}");
    assert_eq!(context.cloud.calls(Action::Exec), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_shows_its_group_size_and_price_which_is_asked_for_once() {
    let (context, node) = start().await;
    context.cloud.set_price(Price { per_hour: 0.1224, currency: "USD".to_owned() });
    for number in 1..=3 {
        let pod = new_pod(&context, number);
        node.create(&pod).await;
        let uid = reference(&pod).uid;
        let price = || node.journal.lock().annotations.get(&uid)?.get("virtual-kubelet.io/price").cloned()?;
        node.until("the price", async || price().as_deref() == Some("0.1224 USD/h")).await;
        let all = node.journal.lock().annotations[&uid].clone();
        assert_eq!(all["virtual-kubelet.io/size"].as_deref(), Some("1-2Gi"));
        assert!(all["virtual-kubelet.io/group"].is_some());
    }
    assert_eq!(context.cloud.calls(Action::Price), 1);
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_turn_comes_late_is_throttled_with_the_time_and_keeps_its_place() {
    let (context, earlier) = start().await;
    earlier.kill().await;
    let supervisor = Supervisor::new();
    let budget = Node::<FakeCloud>::budget(&supervisor, 0.01, 2.0);
    let node = Arc::new(Node::start_as(&context, "vk", budget, supervisor));
    node.pods().await.unwrap();
    let pods: Vec<Pod> = (1..=6).map(|number| new_pod(&context, number)).collect();
    let results = join_all(pods.iter().map(|pod| create(&node, pod))).await;
    let late = results.iter().filter_map(|result| result.as_ref().err()).collect::<Vec<_>>();
    assert!(!late.is_empty(), "{results:?}");
    for error in late {
        assert!(matches!(error.kind(), Kind::Throttled { after: Some(_) }), "{error}");
    }
    // Nobody asks again, and their turns come all the same.
    node.until_within(3600 * SECOND, "all were created", async || context.cloud.seen_groups().len() == 6)
        .await;
    assert_eq!(context.cloud.calls(Action::Create), 6);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_understands_is_one_event_and_changes_nothing() {
    let (context, node) = start().await;
    let pod = new_pod(&context, 1);
    node.create(&pod).await;
    let before = node.phase(&pod, "Running").await;
    context.cloud.set(|behavior| behavior.nonsense = Some("state \"Dreaming\"".to_owned()));
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(node.engine.pod_status(&reference(&pod)).await.unwrap(), before);
    assert_eq!(node.reasons(&pod), ["MalformedStatus"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_is_not_remembered_and_a_warning_names_the_fields_that_are_ignored() {
    let (context, node) = start().await;
    let mut pod = new_pod(&context, 1);
    let spec = pod.spec.as_mut().unwrap();
    spec.topology_spread_constraints = Some(Vec::new());
    spec.host_network = Some(true);
    assert_eq!(*create(&node, &pod).await.unwrap_err().kind(), Kind::Invalid);
    assert!(node.pods().await.unwrap().is_empty());
    pod.spec.as_mut().unwrap().host_network = None;
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    assert_eq!(node.reasons(&pod), ["FieldsNotHonored"]);
}

fn families(node: &Node<FakeCloud>) -> Vec<vk_provider::MetricFamily> {
    node.engine.metrics()
}

/// The samples of a family, as `label=value,...` and their values.
fn samples(node: &Node<FakeCloud>, name: &str) -> Vec<(String, f64)> {
    let family = families(node).into_iter().find(|family| family.name == name);
    let samples = family.unwrap_or_else(|| panic!("there is no metric {name}")).samples;
    let labels = |labels: &[(String, String)]| {
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
    };
    samples.iter().map(|sample| (labels(&sample.labels), sample.value)).collect()
}

fn sample(node: &Node<FakeCloud>, name: &str, labels: &str) -> f64 {
    let found = samples(node, name);
    found.iter().find(|(own, _)| own == labels).unwrap_or_else(|| panic!("{name}{{{labels}}}: {found:?}")).1
}

#[tokio::test(start_paused = true)]
async fn metrics_show_calls_groups_and_costs_and_name_no_pod() {
    let (context, node) = start().await;
    context.cloud.set_price(Price { per_hour: 3.6, currency: "USD".to_owned() });
    context
        .cloud
        .fail(Action::Create, Fault::Refused(vk_container_group::backend::Class::Throttled { after: None }));
    for number in 1..=2 {
        let pod = new_pod(&context, number);
        node.create(&pod).await;
        node.phase(&pod, "Running").await;
    }
    assert!((sample(&node, "cloud_calls", "action=create,outcome=Ok") - 2.0).abs() < 1e-9);
    assert!((sample(&node, "cloud_calls", "action=create,outcome=Throttled") - 1.0).abs() < 1e-9);
    assert!((sample(&node, "cloud_throttled", "action=create") - 1.0).abs() < 1e-9);
    assert!((sample(&node, "cloud_groups", "state=Running") - 2.0).abs() < 1e-9);
    assert!(
        sample(&node, "cloud_duplicates", "").abs() < 1e-9
            && sample(&node, "cloud_orphaned", "").abs() < 1e-9
    );
    let age = sample(&node, "cloud_look_age_seconds", "");
    assert!((0.0..60.0).contains(&age), "{age}");
    let rate = || samples(&node, "cloud_price_per_hour");
    node.until("the price is known", async || !rate().is_empty()).await;
    assert_eq!(rate(), [("namespace=shop,currency=USD".to_owned(), 7.2)]);
    let before = sample(&node, "cloud_cost", "namespace=shop,currency=USD");
    tokio::time::sleep(1000 * SECOND).await;
    let cost = sample(&node, "cloud_cost", "namespace=shop,currency=USD") - before;
    assert!((cost - 2.0).abs() < 0.01, "two groups for 1,000 s at 3.6 an hour: {cost}");
    for family in families(&node) {
        let is_summary = family.kind == vk_provider::metrics::MetricKind::Summary;
        for sample in &family.samples {
            assert_eq!(sample.count.is_some(), is_summary, "{}", family.name);
            for (label, value) in &sample.labels {
                assert!(!value.contains("web"), "{}{{{label}={value}}} names a pod", family.name);
            }
        }
    }
    let mut names: Vec<_> = families(&node).into_iter().map(|family| family.name).collect();
    names.sort();
    let expected = [
        "cloud_budget_wait_seconds",
        "cloud_call_seconds",
        "cloud_calls",
        "cloud_cost",
        "cloud_duplicates",
        "cloud_groups",
        "cloud_look_age_seconds",
        "cloud_orphaned",
        "cloud_price_per_hour",
        "cloud_throttled",
    ];
    assert_eq!(names, expected);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_the_core_does_not_know_is_counted_as_orphaned() {
    let (context, node) = start().await;
    let owner = vk_container_group::backend::Owner {
        cluster: "cluster".into(),
        node: "vk".into(),
        pod: reference(&new_pod(&context, 9)),
        attempt: 1,
        spec_hash: None,
    };
    context.cloud.add_group(&owner);
    node.until("it is counted", async || sample(&node, "cloud_orphaned", "") > 0.5).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_resources_change_is_resized_in_place_and_shows_it() {
    let clock = Clock::following_tokio(Timestamp::from_second(1_800_000_000).expect("a valid time"));
    let mut caps = FakeCloud::all_caps();
    caps.updates.resources = true;
    let context = CaseContext { cloud: FakeCloud::with_caps(clock.clone(), caps), clock };
    let node = Node::start(&context);
    let pod = new_pod(&context, 1);
    node.create(&pod).await;
    node.phase(&pod, "Running").await;
    let is_resizing = || {
        let journal = node.journal.lock();
        let status = &journal.statuses[&reference(&pod).uid];
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|one| one.type_ == "PodResizeInProgress" && one.status == "True")
    };
    assert!(!is_resizing());
    context.cloud.set_start(60 * SECOND);
    let mut resized = pod.clone();
    let limits = [("cpu".to_owned(), ApiQuantity("2".to_owned()))].into();
    resized.spec.as_mut().unwrap().containers[0].resources.get_or_insert_default().limits = Some(limits);
    update(&node, &resized).await.unwrap();
    node.until("it is resized", async || is_resizing()).await;
    node.until("it has its size", async || !is_resizing()).await;
    let uid = reference(&pod).uid;
    let size = || node.journal.lock().annotations[&uid]["virtual-kubelet.io/size"].clone();
    assert_eq!(size().as_deref(), Some("2-2Gi"));
    update(&node, &resized).await.unwrap();
    assert_eq!(context.cloud.calls(Action::Update), 1);
}
