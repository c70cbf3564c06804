use super::*;
use crate::cli::groups::removal::tests::{group, holding};

const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
const OTHER_CLUSTER: &str = "99999999-2222-3333-4444-555555555555";

fn pods(uids: &[&str]) -> ClusterPods {
    ClusterPods {
        cluster: Some(CLUSTER.to_owned()),
        server: "https://here:6443".to_owned(),
        uids: Ok(uids.iter().map(|uid| (*uid).to_owned()).collect()),
        nodes: HashSet::new(),
    }
}

fn marked(uid: &str, cluster: &str) -> Group {
    Group { cluster: Some(cluster.to_owned()), ..group("g", uid) }
}

fn is_unknown(fate: &PodFate, words: &str) -> bool {
    matches!(fate, PodFate::Unknown(why) if why.contains(words))
}

#[test]
fn a_pod_is_found_by_its_uid() {
    let group = marked("u-1", "shop");
    let holding = holding(vec![group.clone()]);
    assert_eq!(pod_fate(&group, &holding, &pods(&["u-1"]), false), PodFate::Exists);
}

#[test]
fn without_the_pods_nothing_is_missing() {
    let group = marked("u-1", CLUSTER);
    let holding = holding(vec![group.clone()]);
    let unread = ClusterPods { uids: Err("no kubeconfig".into()), ..pods(&[]) };
    assert!(is_unknown(&pod_fate(&group, &holding, &unread, false), "no kubeconfig"));
    let unmarked = Group { pod: None, ..group };
    assert!(is_unknown(&pod_fate(&unmarked, &holding, &pods(&[]), false), "not marked"));
}

#[test]
fn a_pod_is_missing_only_in_the_cluster_of_the_group() {
    let fate = |cluster: &str, named: bool, pods: &ClusterPods| {
        let group = marked("gone", cluster);
        let holding = holding(vec![group.clone(), marked("u-2", "shop")]);
        pod_fate(&group, &holding, pods, named)
    };
    assert_eq!(fate(CLUSTER, true, &pods(&[])), PodFate::Missing, "marked with the UID of this cluster");
    assert!(is_unknown(&fate(OTHER_CLUSTER, false, &pods(&["u-2"])), "https://here:6443"));
    assert!(is_unknown(&fate("shop", false, &pods(&[])), "--kubeconfig"), "nothing of it is here");
    assert_eq!(fate("shop", true, &pods(&["u-2"])), PodFate::Missing, "another pod of it is here");
    assert!(is_unknown(&fate("test", true, &pods(&["u-2"])), "cluster test"), "a pod of another mark");
}

#[test]
fn a_pod_of_another_node_shows_nothing_because_two_clusters_may_have_one_name() {
    let of = |node: &str, uid: &str| Group { node: Some(node.into()), ..marked(uid, "shop") };
    let theirs = of("eci-b", "theirs");
    let holding = holding(vec![of("eci-a", "ours"), theirs.clone()]);
    assert!(is_unknown(&pod_fate(&theirs, &holding, &pods(&["ours"]), true), "cluster shop"));
    let gone = of("eci-a", "gone");
    assert_eq!(pod_fate(&gone, &holding, &pods(&["ours"]), true), PodFate::Missing);
}

#[test]
fn a_virtual_node_shows_the_cluster_unless_the_user_named_it() {
    let group = Group { node: Some("eci".into()), ..marked("gone", "shop") };
    let holding = holding(vec![group.clone()]);
    let with = |provider: &str| ClusterPods {
        nodes: HashSet::from([("eci".to_owned(), provider.to_owned())]),
        ..pods(&[])
    };
    assert_eq!(pod_fate(&group, &holding, &with("eci"), false), PodFate::Missing);
    assert!(matches!(pod_fate(&group, &holding, &with("eci"), true), PodFate::Unknown(_)));
    assert!(matches!(pod_fate(&group, &holding, &with("mock"), false), PodFate::Unknown(_)));
}

#[test]
fn a_uid_is_told_from_a_name() {
    assert!(is_uid(CLUSTER));
    assert!(
        !is_uid("shop") && !is_uid("my-shop-in-the-city") && !is_uid("1111111g-2222-3333-4444-555555555555")
    );
}
