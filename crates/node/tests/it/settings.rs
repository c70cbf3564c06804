//! Settings that change between two runs, and descriptions that change during one.

use vk_provider::node::{Condition, ConditionStatus};

use crate::harness::{
    Bed, Setup, Who, annotation, condition, label, state, taint, taints, uid, under_both_identities,
};

under_both_identities!(
    what_is_no_longer_wanted_goes_and_what_changed_follows,
    a_condition_that_the_provider_drops_goes,
    a_label_that_the_provider_drops_goes,
    labels_that_a_node_may_not_touch_do_not_stop_it,
);

async fn what_is_no_longer_wanted_goes_and_what_changed_follows(who: Who) {
    let bed = Bed::shared(who, "settings").await;
    let setup = Setup::default()
        .label("example.com/gone", "x")
        .label("example.com/changed", "old")
        .annotation("example.com/gone", "x")
        .annotation("example.com/changed", "old");
    let agent = bed.start_ready(setup).await;
    bed.kubectl(&["label", "node", &bed.name, "example.com/theirs=stays"]).await;
    agent.stop().await.unwrap();

    let setup = Setup::default().label("example.com/changed", "new").annotation("example.com/changed", "new");
    let _agent = bed.start_ready(setup).await;
    let node = bed.node().await;
    assert_eq!(label(&node, "example.com/gone"), None);
    assert_eq!(label(&node, "example.com/changed"), Some("new"));
    assert_eq!(label(&node, "example.com/theirs"), Some("stays"));
    assert_eq!(annotation(&node, "example.com/gone"), None);
    assert_eq!(annotation(&node, "example.com/changed"), Some("new"));
}

async fn a_condition_that_the_provider_drops_goes(who: Who) {
    let bed = Bed::shared(who, "condition").await;
    let agent = bed.start_ready(Setup::default()).await;
    agent.provider.describe(|node| {
        node.set_condition(Condition {
            kind: "Sunny".to_owned(),
            status: ConditionStatus::True,
            reason: "NoClouds".to_owned(),
            message: "blue".to_owned(),
        });
    });
    bed.see("the condition", |node| state(node, "Sunny") == ("True", "NoClouds")).await;
    agent.provider.describe(|_| {});
    bed.see("no such condition", |node| condition(node, "Sunny").is_none()).await;
}

async fn a_label_that_the_provider_drops_goes(who: Who) {
    let bed = Bed::shared(who, "label").await;
    let agent = bed.start_ready(Setup::default()).await;
    agent.provider.describe(|node| {
        node.labels.insert("example.com/zone".to_owned(), "north".to_owned());
    });
    bed.see("the label", |node| label(node, "example.com/zone") == Some("north")).await;
    agent.provider.describe(|_| {});
    bed.see("no such label", |node| label(node, "example.com/zone").is_none()).await;
}

/// What an administrator's run left behind, a node may neither change nor take away.
async fn labels_that_a_node_may_not_touch_do_not_stop_it(who: Who) {
    let bed = Bed::shared(Who::Admin, "restricted").await;
    let mut setup = Setup::default().label("x.k8s.io/tier", "one");
    setup.taints.push(taint("example.com/second", "", "NoExecute"));
    let agent = bed.start_ready(setup).await;
    let before = bed.node().await;
    agent.stop().await.unwrap();

    let bed = bed.as_who(who);
    let agent = bed.start_ready(Setup::default().label("example.com/new", "y")).await;
    let node = bed.see("the new label", |node| label(node, "example.com/new") == Some("y")).await;
    assert_eq!(uid(&node), uid(&before));
    assert_eq!(label(&node, "kubernetes.io/role"), Some("agent"));
    match who {
        Who::Admin => {
            assert_eq!(label(&node, "x.k8s.io/tier"), None);
            assert_eq!(taints(&node).len(), 1);
        }
        Who::Node => {
            assert_eq!(label(&node, "x.k8s.io/tier"), Some("one"));
            assert_eq!(taints(&node).len(), 2);
        }
    }
    assert_eq!(agent.requests("patch", "nodes", Some("Forbidden")), 0);
}
