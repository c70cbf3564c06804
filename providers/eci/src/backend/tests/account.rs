//! What the account has, and what it does not: stock, money, calls, and groups of others.

#![expect(clippy::disallowed_methods, reason = "the tasks of a test end with its runtime")]

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use vk_container_group::conformance::{self, CaseContext, Node, TestCloud as _, reference};
use vk_provider::{
    Changes, Error, PodChange, Provider,
    ability::{LogBody, LogOptions, Since},
    error::Kind,
};
use vk_testing::{
    cloud::eci::{BillingRecord, EciEmulator, Fault, Limit, Rule, StockCheck},
    conformance::Subject as _,
};

use super::{conformance::EmulatedCloud, context, provider_suite::EmulatedAccount};

type Context = CaseContext<EmulatedCloud>;

/// A pod that may have one of these sizes.
fn pod(context: &Context, number: u32, sizes: &str) -> Pod {
    let mut pod = conformance::pod(&format!("web-{number}"), number, context.clock.now());
    let key = "k8s.aliyun.com/eci-use-specs".to_owned();
    pod.metadata.annotations = Some([(key, sizes.to_owned())].into());
    pod
}

fn sold_out(context: &Context, places: &[&str]) {
    let places = places.iter().map(|place| (*place).to_owned()).collect();
    context.cloud.emulator().change_settings(|settings| settings.sold_out = places);
}

/// Subnet and size of the only group of a pod.
fn place(context: &Context, pod: &Pod) -> (String, f64, f64) {
    let ids = context.cloud.of_pod(&reference(pod).uid);
    assert_eq!(ids.len(), 1, "{ids:?}");
    let request = context.cloud.emulator().request(&ids[0]).unwrap();
    let number = |name: &str| request[name].as_f64().unwrap();
    (request["VSwitchId"].as_str().unwrap().to_owned(), number("Cpu"), number("Memory"))
}

async fn refusal(node: &Node<EmulatedCloud>, pod: &Pod) -> Error {
    node.engine.create_pod(node.bundle(pod)).await.unwrap_err()
}

#[test]
fn without_stock_the_next_v_switch_is_taken_and_then_the_next_size() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            let sizes = "2-4Gi,4-8Gi";
            let first = pod(&context, 1, sizes);
            node.create(&first).await;
            node.phase(&first, "Running").await;
            assert_eq!(place(&context, &first), ("vsw-a".to_owned(), 2.0, 4.0));
            sold_out(&context, &["vsw-a/2-4"]);
            let second = pod(&context, 2, sizes);
            node.create(&second).await;
            node.phase(&second, "Running").await;
            assert_eq!(place(&context, &second), ("vsw-b".to_owned(), 2.0, 4.0));
            sold_out(&context, &["2-4"]);
            let third = pod(&context, 3, sizes);
            node.create(&third).await;
            node.phase(&third, "Running").await;
            let (_, cpu, memory) = place(&context, &third);
            assert_eq!((cpu, memory), (4.0, 8.0));
        })
    });
}

#[test]
fn a_pod_that_nothing_has_stock_for_waits_until_there_is_some() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            sold_out(&context, &["2-4", "4-8"]);
            let pod = pod(&context, 1, "2-4Gi,4-8Gi");
            let error = refusal(&node, &pod).await;
            assert_eq!(*error.kind(), Kind::Exhausted, "{error}");
            // Two subnets and two sizes.
            let count = context.cloud.emulator().calls()["CreateContainerGroup"];
            assert_eq!((count.total, count.refused), (4, 4));
            let again = refusal(&node, &pod).await;
            assert_eq!(*again.kind(), Kind::Exhausted, "{again}");
            let calls = context.cloud.emulator().calls()["CreateContainerGroup"].total;
            assert_eq!(calls, 4, "places without stock are left out for three minutes");
            sold_out(&context, &[]);
            tokio::time::sleep(Duration::from_mins(3)).await;
            node.create(&pod).await;
            node.phase(&pod, "Running").await;
            assert_eq!(place(&context, &pod), ("vsw-a".to_owned(), 2.0, 4.0));
        })
    });
}

#[test]
fn a_zone_that_is_not_sold_is_left_out() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            context.cloud.emulator().change_settings(|settings| {
                settings.closed_zones = ["cn-hangzhou-a".to_owned()].into();
            });
            let pod = pod(&context, 1, "2-4Gi");
            node.create(&pod).await;
            assert_eq!(place(&context, &pod).0, "vsw-b");
        })
    });
}

/// All statuses that the core was told of a pod until nothing happens any more. A group that runs is taken back.
async fn told_statuses(prepare: impl FnOnce(&EciEmulator)) -> Vec<PodStatus> {
    let account = EmulatedAccount::simulated();
    let emulator = account.emulator();
    let provider = account.open(context()).await.unwrap();
    let Changes::Push(mut changes) = provider.changes() else { panic!("the engine pushes changes") };
    prepare(&emulator);
    let pod = Arc::new(conformance::pod("web", 1, emulator.now()));
    provider.create_pod(vk_testing::conformance::bundle(&pod, true)).await.unwrap();
    let mut told = Vec::new();
    while let Ok(Some(change)) = tokio::time::timeout(Duration::from_mins(2), changes.next()).await {
        if let PodChange::Status(_, status) = change {
            let group = emulator.groups().remove(0);
            if status.phase.as_deref() == Some("Running") && group.status == "Running" {
                assert!(emulator.reclaim(&group.id));
            }
            told.push(*status);
        }
    }
    assert_eq!(emulator.groups().len(), 1, "it is not created again");
    told
}

fn failed(told: &[PodStatus]) -> Vec<&PodStatus> {
    let failed: Vec<_> = told.iter().filter(|status| status.phase.as_deref() == Some("Failed")).collect();
    assert!(!failed.is_empty(), "{told:?}");
    failed
}

#[test]
fn a_size_without_stock_does_not_stop_pods_of_other_sizes() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            sold_out(&context, &["64-512"]);
            let sized = |number: u32, cpu: &str, memory: &str| {
                let mut pod = conformance::pod(&format!("web-{number}"), number, context.clock.now());
                let resources = serde_json::json!({"requests": {"cpu": cpu, "memory": memory}});
                let spec = pod.spec.as_mut().unwrap();
                spec.containers[0].resources = serde_json::from_value(resources).unwrap();
                pod
            };
            let large = sized(1, "64", "512Gi");
            let error = refusal(&node, &large).await;
            assert_eq!(*error.kind(), Kind::Exhausted, "{error}");
            let created = node.engine.create_pod(node.bundle(&sized(2, "1", "2Gi"))).await;
            assert!(created.is_ok(), "{created:?}");
            let before = context.cloud.emulator().calls()["CreateContainerGroup"].total;
            let again = refusal(&node, &sized(3, "64", "512Gi")).await;
            assert_eq!(*again.kind(), Kind::Exhausted, "{again}");
            let calls = context.cloud.emulator().calls()["CreateContainerGroup"].total;
            assert_eq!(calls, before, "the large size is not tried again for three minutes");
        })
    });
}

#[test]
fn a_zone_that_is_not_sold_is_not_tried_again_for_other_sizes() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            context.cloud.emulator().change_settings(|settings| {
                settings.closed_zones = ["cn-hangzhou-a".to_owned()].into();
            });
            for (number, size) in [(1, "2-4Gi"), (2, "4-8Gi"), (3, "8-16Gi")] {
                let pod = pod(&context, number, size);
                node.create(&pod).await;
                assert_eq!(place(&context, &pod).0, "vsw-b");
            }
            let calls = context.cloud.emulator().calls()["CreateContainerGroup"];
            assert_eq!((calls.total, calls.refused), (4, 1));
        })
    });
}

/// The create was accepted, so that the group is there and has failed: a pod in a terminal phase stays so, and its controller makes another.
#[tokio::test(start_paused = true)]
async fn a_lack_of_stock_that_is_seen_late_fails_the_pod_and_every_status_says_why() {
    let told = told_statuses(|emulator| {
        emulator.change_settings(|settings| {
            settings.stock_check = StockCheck::AtSchedule;
            settings.sold_out = ["vsw-a".to_owned()].into();
        });
    })
    .await;
    for status in failed(&told) {
        assert_eq!(status.reason.as_deref(), Some("ScheduleFailed"), "{status:?}");
        let message = status.message.as_deref().unwrap_or_default();
        assert!(message.contains("out of stock"), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_taken_back_is_never_a_failed_pod_without_its_disruption() {
    let told = told_statuses(|_| {}).await;
    for status in failed(&told) {
        let mut conditions = status.conditions.iter().flatten();
        assert!(conditions.any(|condition| condition.type_ == "DisruptionTarget"), "{status:?}");
        assert!(status.reason.is_some(), "{status:?}");
    }
}

#[test]
fn an_account_that_owes_money_is_denied_and_pods_wait() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let node = Node::start(&context);
            context.cloud.emulator().set_overdrawn(true);
            let pod = pod(&context, 1, "2-4Gi");
            let error = refusal(&node, &pod).await;
            assert_eq!(*error.kind(), Kind::Denied, "{error}");
            assert!(error.message().contains("balance"), "{error}");
            context.cloud.emulator().set_overdrawn(false);
            node.create(&pod).await;
            node.phase(&pod, "Running").await;
        })
    });
}

/// The vendor's rate limits are those of the emulator.
#[test]
fn the_vendor_throttles_no_call_of_a_thousand_pods() {
    conformance::check(EmulatedCloud::start_with_rate_limits, |context| {
        Box::pin(async move {
            conformance::thousand_pods_under_a_10_rps_budget(Arc::clone(&context)).await;
            let calls = context.cloud.emulator().calls();
            let throttled: u64 = calls.values().map(|count| count.throttled).sum();
            assert_eq!(throttled, 0, "{calls:?}");
            assert_eq!(calls["CreateContainerGroup"].total, 1000);
        })
    });
}

/// The check of the test above can fail.
#[test]
fn calls_beyond_the_vendors_limits_are_throttled_and_count_as_failed() {
    conformance::check(EmulatedCloud::start_with_rate_limits, |context| {
        Box::pin(async move {
            let emulator = context.cloud.emulator();
            emulator.set_limit("CreateContainerGroup", Limit { burst: 2.0, per_second: 0.5 });
            let node = Node::start(&context);
            let pods: Vec<Pod> =
                (1..=8).map(|number| conformance::pod("web", number, context.clock.now())).collect();
            futures::future::join_all(pods.iter().map(|pod| node.create(pod))).await;
            let throttled = emulator.calls()["CreateContainerGroup"].throttled;
            assert!(throttled > 0 && context.cloud.failed_calls() == throttled, "{throttled}");
        })
    });
}

#[test]
fn an_idle_hour_leaves_one_group_for_each_pod_and_touches_no_other() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            let foreign = add(context.cloud.emulator(), "somebody-elses", &[("owner", "somebody")]);
            let emulator = context.cloud.emulator();
            let before = emulator.request(&foreign);
            conformance::thousand_idle_groups(Arc::clone(&context)).await;
            assert_eq!(emulator.request(&foreign), before);
            let groups = emulator.groups();
            let other = groups.iter().find(|group| group.id == foreign).unwrap();
            assert_eq!(other.status, "Running");
            let (own, bills): (Vec<_>, Vec<BillingRecord>) = (
                groups.iter().filter(|group| group.id != foreign).collect(),
                emulator.bills().into_iter().filter(|bill| bill.id != foreign).collect(),
            );
            let mut owners: Vec<_> = own
                .iter()
                .flat_map(|group| group.tags.iter().filter(|(key, _)| key == "vk-uid").map(|(_, uid)| uid))
                .collect();
            owners.sort();
            owners.dedup();
            assert!(own.len() >= 1000, "{} groups", own.len());
            assert_eq!((owners.len(), bills.len()), (own.len(), own.len()), "one group for each pod");
            assert!(bills.iter().all(|bill| !bill.name["vk-".len()..].contains('-')), "no second attempts");
        })
    });
}

/// Adds a group as somebody has created it, with these tags.
fn add(emulator: &EciEmulator, name: &str, tags: &[(&str, &str)]) -> String {
    let fixed = [
        ("RegionId", "cn-hangzhou"),
        ("ContainerGroupName", name),
        ("SecurityGroupId", "sg-1"),
        ("VSwitchId", "vsw-a"),
        ("Container.1.Name", "main"),
        ("Container.1.Image", "image:1"),
    ];
    let mut parameters: Vec<_> =
        fixed.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    for (at, (key, value)) in (1..).zip(tags) {
        parameters.push((format!("Tag.{at}.Key"), (*key).to_owned()));
        parameters.push((format!("Tag.{at}.Value"), (*value).to_owned()));
    }
    emulator.create(&parameters).unwrap_or_else(|error| panic!("{error:?}"))
}

/// The provider on an account, for a core that owns the node: it reads the changes.
async fn opened(account: &EmulatedAccount) -> Arc<dyn Provider> {
    let provider = account.open(context()).await.unwrap();
    let Changes::Push(changes) = provider.changes() else { panic!("the engine pushes changes") };
    tokio::spawn(changes.for_each(async |_| ()));
    provider
}

async fn runs(provider: &Arc<dyn Provider>, pod: &Pod) {
    for _ in 0..600 {
        let status = provider.pod_status(&reference(pod)).await;
        if status.is_ok_and(|status| status.phase.as_deref() == Some("Running")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("it never runs");
}

#[tokio::test(start_paused = true)]
async fn groups_of_the_go_provider_are_adopted_where_cluster_node_and_uid_match() {
    let account = EmulatedAccount::simulated();
    let emulator = account.emulator();
    let pod = conformance::pod("web", 1, emulator.now());
    let uid = pod.metadata.uid.clone().unwrap();
    let tags = |cluster: &'static str, node: &'static str| {
        let uid = uid.clone();
        [
            ("ClusterName", cluster.to_owned()),
            ("NodeName", node.to_owned()),
            ("NameSpace", "shop".to_owned()),
            ("PodName", "web".to_owned()),
            ("UID", uid),
            ("CreationTimestamp", "2027-01-15T08-00-00Z".to_owned()),
        ]
    };
    let create = |cluster, node| {
        let tags = tags(cluster, node);
        let tags: Vec<_> = tags.iter().map(|(key, value)| (*key, value.as_str())).collect();
        add(&emulator, "shop-web", &tags)
    };
    let (ours, others) = (create("shop", "vk"), [create("shop", "other-node"), create("other", "vk")]);
    // They run for a while.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let provider = opened(&account).await;
    let listed = provider.pods().await.unwrap();
    assert_eq!(listed.iter().map(|one| &one.pod).collect::<Vec<_>>(), [&reference(&pod)]);
    let bundle = || vk_testing::conformance::bundle(&Arc::new(pod.clone()), true);
    provider.create_pod(bundle()).await.unwrap();
    runs(&provider, &pod).await;
    assert!(!emulator.calls().contains_key("CreateContainerGroup"), "{:?}", emulator.calls());
    provider.delete_pod(&reference(&pod), None, Duration::from_secs(1)).await.unwrap();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let left: BTreeSet<_> = emulator.groups().into_iter().map(|group| group.id).collect();
    assert_eq!(left, BTreeSet::from(others), "{ours} is gone, and groups of others are not ours");
}

#[tokio::test(start_paused = true)]
async fn logs_of_the_last_instance_and_since_a_time_can_be_read() {
    let account = EmulatedAccount::simulated();
    let emulator = account.emulator();
    let provider = opened(&account).await;
    let mut pod = conformance::pod("web", 1, emulator.now());
    let spec = pod.spec.as_mut().unwrap();
    spec.restart_policy = Some("Always".to_owned());
    spec.containers[0].command = Some(["sh", "-c", "wait"].map(str::to_owned).to_vec());
    provider.create_pod(vk_testing::conformance::bundle(&Arc::new(pod.clone()), true)).await.unwrap();
    runs(&provider, &pod).await;
    let id = emulator.groups().remove(0).id;
    let log = async |options: LogOptions| {
        let opened = provider.logs().unwrap().open(&reference(&pod).container("main"), &options).await;
        let (LogBody::Final(lines) | LogBody::Stamped(lines) | LogBody::Plain(lines)) = opened.unwrap();
        let lines: Vec<_> = lines.collect().await;
        let bytes: Vec<u8> = lines.into_iter().flat_map(|line| line.unwrap()).collect();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(emulator.log(&id, "main", "first"));
    assert!(emulator.exit(&id, "main", 3));
    tokio::time::sleep(Duration::from_secs(30)).await;
    runs(&provider, &pod).await;
    assert!(emulator.log(&id, "main", "early"));
    tokio::time::sleep(Duration::from_mins(1)).await;
    let since = emulator.now();
    assert!(emulator.log(&id, "main", "late"));
    let previous = log(LogOptions { previous: true, ..LogOptions::default() }).await;
    assert_eq!(previous, ["first"]);
    assert_eq!(log(LogOptions::default()).await, ["early", "late"]);
    let late = log(LogOptions { since: Some(Since::Time(since)), ..LogOptions::default() }).await;
    assert_eq!(late, ["late"]);
}

/// Pages get lost and come back, so that lists shrink and grow while they are read: nobody learns it from the answers.
#[test]
fn list_shrinks_and_grows_while_read() {
    conformance::check(EmulatedCloud::start, |context| {
        Box::pin(async move {
            context.cloud.set_page(3);
            let emulator = context.cloud.emulator();
            let node = Node::start(&context);
            let pods: Vec<Pod> = (1..=12)
                .map(|number| conformance::pod(&format!("web-{number}"), number, context.clock.now()))
                .collect();
            for pod in &pods {
                node.create(pod).await;
            }
            for pod in &pods {
                node.phase(pod, "Running").await;
            }
            let lists = || emulator.calls()["DescribeContainerGroups"].total;
            let before = lists();
            for page in [2, 3, 4] {
                let lost = Rule::always(Fault::LostPage).of("DescribeContainerGroups").on_page(page);
                emulator.add_fault(lost.with_probability(0.5));
            }
            tokio::time::sleep(Duration::from_hours(1)).await;
            assert!(lists() > before + 8, "no list was read");
            for pod in &pods {
                assert_eq!(context.cloud.of_pod(&reference(pod).uid).len(), 1);
                let status = node.engine.pod_status(&reference(pod)).await.unwrap();
                assert_eq!(status.phase.as_deref(), Some("Running"));
            }
            assert_eq!(emulator.calls()["CreateContainerGroup"].total, 12);
            assert!(!emulator.calls().contains_key("DeleteContainerGroup"));
        })
    });
}
