use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use vk_provider::{Error, Inventory, Result};

use super::*;

const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";

/// Records what is removed.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

#[async_trait]
impl Inventory for Recorder {
    async fn groups(&self, _scope: &InventoryScope) -> Result<Vec<Group>> {
        Ok(Vec::new())
    }

    async fn remove(&self, _scope: &InventoryScope, id: &str) -> Result<()> {
        self.0.lock().push(id.to_owned());
        match id {
            "gone" => Err(Error::not_found("no such group")),
            "stuck" => Err(Error::unavailable("no answer")),
            _ => Ok(()),
        }
    }
}

pub(in crate::cli::groups) fn group(id: &str, uid: &str) -> Group {
    Group {
        cluster: Some(CLUSTER.to_owned()),
        pod: Some(PodRef::new("shop", format!("pod-{uid}"), uid)),
        ..Group::new(id, "Running")
    }
}

pub(in crate::cli::groups) fn holding(groups: Vec<Group>) -> Holding {
    Holding { provider: "eci".to_owned(), inventory: Arc::new(Recorder::default()), groups }
}

/// Removes ids from groups `g-1` with the pod `u-1`, which exists, and others without; returns the error and what was removed.
async fn remove_with(ids: &[&str], pods: std::result::Result<&[&str], &str>) -> (String, Vec<String>) {
    let recorder = Arc::new(Recorder::default());
    let mut groups =
        vec![group("g-1", "u-1"), group("g-2", "u-2"), group("gone", "u-3"), group("stuck", "u-4")];
    groups[1].name = Some("vk-two".to_owned());
    groups.push(Group { pod: None, ..group("unmarked", "") });
    let holdings =
        [Holding { provider: "eci".into(), inventory: Arc::clone(&recorder) as Arc<dyn Inventory>, groups }];
    let pods = ClusterPods {
        cluster: Some(CLUSTER.to_owned()),
        server: "https://here:6443".to_owned(),
        uids: pods.map(|uids| uids.iter().map(|uid| (*uid).to_owned()).collect()).map_err(ToOwned::to_owned),
        nodes: HashSet::new(),
    };
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let error = match remove(&ids, &holdings, &pods, &InventoryScope::default(), None).await {
        Ok(()) => String::new(),
        Err(Failure::Runtime(error)) => format!("{error:#}"),
        Err(Failure::Configuration(problems)) => panic!("{problems:?}"),
    };
    let removed = recorder.0.lock().clone();
    (error, removed)
}

#[tokio::test]
async fn orphans_are_removed_by_id_or_name() {
    let (error, removed) = remove_with(&["g-2"], Ok(&["u-1"])).await;
    assert_eq!((error.as_str(), removed), ("", vec!["g-2".to_owned()]));
    let (error, removed) = remove_with(&["vk-two", "gone"], Ok(&["u-1"])).await;
    assert_eq!((error.as_str(), removed.len()), ("", 2), "one that is gone already is no error");
}

#[tokio::test]
async fn nothing_is_removed_if_one_of_the_groups_must_stay() {
    for (id, words) in [
        ("g-1", "belongs to pod shop/pod-u-1, which exists"),
        ("nosuch", "there is no group nosuch"),
        ("unmarked", "not marked with a pod"),
    ] {
        let (error, removed) = remove_with(&["g-2", id], Ok(&["u-1"])).await;
        assert!(error.contains(words), "{error}");
        assert_eq!(removed, Vec::<String>::new(), "{id}");
    }
}

#[tokio::test]
async fn nothing_is_removed_without_the_pods_of_the_api_server() {
    let (error, removed) = remove_with(&["g-2"], Err("no kubeconfig")).await;
    assert!(error.contains("g-2 is not removed") && error.contains("no kubeconfig"), "{error}");
    assert_eq!(removed, Vec::<String>::new());
}

#[tokio::test]
async fn a_failed_removal_names_the_group() {
    let (error, _) = remove_with(&["stuck"], Ok(&["u-1"])).await;
    assert!(error.contains("remove group stuck") && error.contains("no answer"), "{error}");
}
