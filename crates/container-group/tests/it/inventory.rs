//! What `virtual-kubelet groups` sees and removes, without a running engine.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use vk_container_group::{
    backend::{Action, Class, GroupRef, Owner, Price, Rate},
    budget::{Budget, Limits},
    conformance::{CaseContext, Node, TestCloud as _, pod, reference},
    engine::GroupInventory,
    fake::{FakeCloud, Fault},
};
use vk_provider::{
    Inventory as _, PodRef,
    error::Kind,
    inventory::{Group, InventoryScope},
};
use vk_supervisor::{Clock, Supervisor};

const UID: &str = "00000000-0000-4000-8000-00000000000";

struct Fixture {
    cloud: FakeCloud,
    clock: Clock,
    inventory: GroupInventory<FakeCloud>,
    /// Keeps the budget running.
    supervisor: Supervisor,
}

fn fixture() -> Fixture {
    let clock = Clock::following_tokio(Timestamp::from_second(1_800_000_000).unwrap());
    let cloud = FakeCloud::new(clock.clone());
    let supervisor = Supervisor::new();
    let limits = Limits { total: Rate { per_second: 100.0, burst: 100.0 }, actions: BTreeMap::new() };
    let budget = Budget::new(&limits, &supervisor);
    let inventory = GroupInventory::new(Arc::new(cloud.clone()), budget, Some("cluster".to_owned()), true);
    Fixture { cloud, clock, inventory, supervisor }
}

fn owner(cluster: &str, node: &str, number: u32) -> Owner {
    Owner {
        cluster: cluster.into(),
        node: node.into(),
        pod: PodRef::new("shop", format!("web-{number}"), format!("{UID}{number}")),
        attempt: 1,
        spec_hash: None,
    }
}

fn scope(cluster: Option<&str>, node: Option<&str>) -> InventoryScope {
    InventoryScope { cluster: cluster.map(str::to_owned), node: node.map(str::to_owned) }
}

fn ids(groups: &[Group]) -> Vec<&str> {
    groups.iter().map(|group| group.id.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_groups_of_all_nodes_of_the_cluster_are_shown_with_size_price_age_and_cost() {
    let Fixture { cloud, clock, inventory, supervisor: _running } = fixture();
    cloud.set_price(Price { per_hour: 0.5, currency: "USD".to_owned() });
    cloud.set_page(2);
    let ours: Vec<GroupRef> = [("a", 1), ("b", 2), ("a", 3)]
        .map(|(node, number)| cloud.add_group(&owner("cluster", node, number)))
        .into();
    cloud.add_group(&owner("other", "a", 4));
    tokio::time::sleep(Duration::from_hours(2)).await;
    let groups = inventory.groups(&scope(None, None)).await.unwrap();
    assert_eq!(ids(&groups), ours.iter().map(|group| &*group.id).collect::<Vec<_>>());
    let first = &groups[0];
    assert_eq!((first.cluster.as_deref(), first.node.as_deref()), (Some("cluster"), Some("a")));
    assert_eq!((first.state.as_str(), first.remark.as_deref()), ("Running", None));
    assert_eq!(first.pod, Some(owner("cluster", "a", 1).pod));
    assert!(first.size.is_some());
    let cost = first.cost(clock.now()).unwrap();
    assert!((cost - 1.0).abs() < 1e-6, "two hours: {cost}");
    assert_eq!(cloud.calls(Action::Price), 1, "one size");
    let of_node = inventory.groups(&scope(None, Some("b"))).await.unwrap();
    assert_eq!(ids(&of_node), [&*ours[1].id]);
    let of_other = inventory.groups(&scope(Some("other"), None)).await.unwrap();
    assert_eq!(of_other.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_of_the_cluster_is_removed_by_id_and_no_other_group() {
    let Fixture { cloud, inventory, supervisor: _running, .. } = fixture();
    let ours = cloud.add_group(&owner("cluster", "a", 1));
    let other_node = cloud.add_group(&owner("cluster", "b", 2));
    let foreign = cloud.add_group(&owner("other", "a", 3));
    for (scope, id) in [
        (scope(None, None), &foreign.id),
        (scope(None, Some("a")), &other_node.id),
        (scope(None, None), &"unknown".into()),
    ] {
        let refused = inventory.remove(&scope, id).await.unwrap_err();
        assert_eq!(*refused.kind(), Kind::NotFound, "{refused}");
    }
    assert_eq!(cloud.calls(Action::Delete), 0);
    inventory.remove(&scope(None, Some("a")), &ours.id).await.unwrap();
    let left: Vec<_> =
        cloud.seen_groups().into_iter().filter(|group| !group.deleting).map(|one| one.group).collect();
    assert_eq!(left, [other_node, foreign]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_may_lack_groups_is_an_error_and_a_failed_call_is_repeated() {
    let Fixture { cloud, inventory, supervisor: _running, .. } = fixture();
    cloud.add_group(&owner("cluster", "a", 1));
    cloud.fail(Action::Observe, Fault::Refused(Class::Throttled { after: Some(Duration::from_secs(3)) }));
    cloud.fail(Action::Observe, Fault::Hangs);
    assert_eq!(inventory.groups(&scope(None, None)).await.unwrap().len(), 1);
    for _ in 0..4 {
        cloud.fail(Action::Observe, Fault::Refused(Class::Unavailable));
    }
    let failed = inventory.groups(&scope(None, None)).await.unwrap_err();
    assert_eq!(*failed.kind(), Kind::Unavailable);
    cloud.fail(Action::Observe, Fault::Refused(Class::Denied));
    let calls = cloud.calls(Action::Observe);
    let denied = inventory.groups(&scope(None, None)).await.unwrap_err();
    assert_eq!((denied.kind(), cloud.calls(Action::Observe)), (&Kind::Denied, calls + 1), "not repeated");
}

#[tokio::test(start_paused = true)]
async fn without_a_cluster_nothing_is_listed() {
    let Fixture { cloud, inventory: _, supervisor, .. } = fixture();
    let limits = Limits { total: Rate { per_second: 1.0, burst: 1.0 }, actions: BTreeMap::new() };
    let budget = Budget::new(&limits, &supervisor);
    let inventory = GroupInventory::new(Arc::new(cloud.clone()), budget, None, false);
    let refused = inventory.groups(&scope(None, None)).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Invalid);
    assert!(refused.message().contains("--cluster-name"), "{refused}");
    assert_eq!(cloud.total_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn groups_of_the_go_provider_are_shown_as_such_and_adopted_where_node_and_uid_match() {
    let Fixture { cloud, clock, inventory, supervisor: _running } = fixture();
    let context = CaseContext { cloud: cloud.clone(), clock };
    let created = context.clock.now() - jiff::SignedDuration::from_hours(1);
    let (ours, theirs) = (pod("web", 1, created), pod("web", 2, created));
    let of = |node: &str, pod: &k8s_openapi::api::core::v1::Pod| Owner {
        pod: reference(pod),
        ..owner("cluster", node, 0)
    };
    let group = cloud.add_named_group(&of("vk", &ours), "shop-web");
    cloud.add_named_group(&of("other", &theirs), "shop-web");
    let groups = inventory.groups(&scope(None, None)).await.unwrap();
    assert_eq!(groups.len(), 2);
    assert!(groups.iter().all(|group| group.remark.as_deref() == Some("created by the Go provider")));
    assert_eq!(groups[0].name.as_deref(), Some("shop-web"));
    let node = Node::start(&context);
    assert_eq!(node.pods().await.unwrap(), [reference(&ours)]);
    node.create(&ours).await;
    node.phase(&ours, "Running").await;
    assert_eq!(cloud.calls(Action::Create), 0, "adopted");
    // A pod of the other node's group is not ours: it gets a group of its own.
    node.create(&theirs).await;
    assert_eq!(cloud.calls(Action::Create), 1);
    node.delete(&ours).await;
    node.absent(&reference(&ours)).await;
    assert!(cloud.seen_groups().iter().all(|one| one.group != group));
}
