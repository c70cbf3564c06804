//! Settings that change between two runs, and provider descriptions that change during one.

use tokio::sync::watch;
use vk_provider::{
    node::{Condition, ConditionStatus},
    placement::{PLACEMENT_ANNOTATION, SERVING_KEY_ANNOTATION},
};

use crate::harness::{
    NodeTest, Setup, Who, annotation, condition, label, state, taint, taints, uid, under_both_identities,
};

under_both_identities!(
    removed_settings_are_removed_and_changed_ones_updated,
    a_condition_that_the_provider_drops_is_removed,
    a_label_that_the_provider_drops_is_removed,
    labels_that_a_node_may_not_change_do_not_block_it,
    the_declaration_of_fit_follows_the_ability_and_the_key_of_the_server,
);

async fn removed_settings_are_removed_and_changed_ones_updated(who: Who) {
    let test = NodeTest::shared(who, "settings").await;
    let setup = Setup::default()
        .label("example.com/gone", "x")
        .label("example.com/changed", "old")
        .annotation("example.com/gone", "x")
        .annotation("example.com/changed", "old");
    let controller = test.start_ready(setup).await;
    test.kubectl(&["label", "node", &test.name, "example.com/theirs=stays"]).await;
    controller.stop().await.unwrap();

    let setup = Setup::default().label("example.com/changed", "new").annotation("example.com/changed", "new");
    let _controller = test.start_ready(setup).await;
    let node = test.node().await;
    assert_eq!(label(&node, "example.com/gone"), None);
    assert_eq!(label(&node, "example.com/changed"), Some("new"));
    assert_eq!(label(&node, "example.com/theirs"), Some("stays"));
    assert_eq!(annotation(&node, "example.com/gone"), None);
    assert_eq!(annotation(&node, "example.com/changed"), Some("new"));
}

async fn a_condition_that_the_provider_drops_is_removed(who: Who) {
    let test = NodeTest::shared(who, "condition").await;
    let controller = test.start_ready(Setup::default()).await;
    controller.provider.describe(|node| {
        node.set_condition(Condition {
            kind: "Sunny".to_owned(),
            status: ConditionStatus::True,
            reason: "NoClouds".to_owned(),
            message: "blue".to_owned(),
        });
    });
    test.wait_for("the condition", |node| state(node, "Sunny") == ("True", "NoClouds")).await;
    controller.provider.describe(|_| {});
    test.wait_for("no such condition", |node| condition(node, "Sunny").is_none()).await;
}

async fn a_label_that_the_provider_drops_is_removed(who: Who) {
    let test = NodeTest::shared(who, "label").await;
    let controller = test.start_ready(Setup::default()).await;
    controller.provider.describe(|node| {
        node.labels.insert("example.com/zone".to_owned(), "north".to_owned());
    });
    test.wait_for("the label", |node| label(node, "example.com/zone") == Some("north")).await;
    controller.provider.describe(|_| {});
    test.wait_for("no such label", |node| label(node, "example.com/zone").is_none()).await;
}

/// A node identity may neither change nor remove labels that a run as administrator has set.
async fn labels_that_a_node_may_not_change_do_not_block_it(who: Who) {
    let test = NodeTest::shared(Who::Admin, "restricted").await;
    let mut setup = Setup::default().label("x.k8s.io/tier", "one");
    setup.taints.push(taint("example.com/second", "", "NoExecute"));
    let controller = test.start_ready(setup).await;
    let before = test.node().await;
    controller.stop().await.unwrap();

    let test = test.as_who(who);
    let controller = test.start_ready(Setup::default().label("example.com/new", "y")).await;
    let node = test.wait_for("the new label", |node| label(node, "example.com/new") == Some("y")).await;
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
    assert_eq!(controller.requests("patch", "nodes", Some("Forbidden")), 0);
}

async fn the_declaration_of_fit_follows_the_ability_and_the_key_of_the_server(who: Who) {
    let test = NodeTest::shared(who, "fit").await;
    let key = watch::Sender::new(Some("sha256:01".into()));
    let setup = Setup { serving_key: key.subscribe(), ..Setup::default() };
    let controller = test.start_ready(setup).await;
    test.kubectl(&["annotate", "node", &test.name, "example.com/theirs=stays"]).await;
    // A node identity is not shown pods before they are bound, so such a node takes none on trial.
    let fit = if who == Who::Node { "fit" } else { "fit,trial" };
    let declared = |fit: Option<&'static str>, key: Option<&'static str>| {
        move |node: &_| {
            annotation(node, PLACEMENT_ANNOTATION) == fit && annotation(node, SERVING_KEY_ANNOTATION) == key
        }
    };
    test.wait_for("no declaration", declared(None, None)).await;
    controller.provider.set_has_fit(true);
    test.wait_for("fit with the key", declared(Some(fit), Some("sha256:01"))).await;
    key.send_replace(Some("sha256:02".into()));
    test.wait_for("fit with the new key", declared(Some(fit), Some("sha256:02"))).await;
    // Whoever could change the key would get the tokens of placement.
    let forged = format!("{SERVING_KEY_ANNOTATION}=sha256:ff");
    test.kubectl(&["annotate", "--overwrite", "node", &test.name, &forged]).await;
    test.wait_for("fit with our key", declared(Some(fit), Some("sha256:02"))).await;
    controller.provider.set_has_fit(false);
    let node = test.wait_for("no declaration any more", declared(None, None)).await;
    assert_eq!(annotation(&node, "example.com/theirs"), Some("stays"));
    controller.provider.set_has_fit(true);
    test.wait_for("fit again", declared(Some(fit), Some("sha256:02"))).await;
    controller.stop().await.unwrap();

    // Another provider runs the node now.
    let _controller = test.start_ready(Setup { serving_key: key.subscribe(), ..Setup::default() }).await;
    test.wait_for("no declaration by another provider", declared(None, None)).await;
}
