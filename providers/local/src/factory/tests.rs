use serde_json::{Value, json};
use vk_provider::{NodeTemplate, error::Kind, node::ConditionStatus};

use super::{
    node_conditions::{ISOLATED, ISOLATION, NETWORKED},
    *,
};

fn context(folder: &Path, node: &str) -> Context {
    Context {
        node_name: node.to_owned(),
        internal_ip: [192, 0, 2, 1].into(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: None,
        state_dir: folder.join(node),
        shared_dir: folder.to_owned(),
        extensions: vk_provider::Extensions::default(),
        supervisor: vk_provider::Supervisor::new(),
    }
}

fn read(config: Value) -> Settings {
    Settings::read(&Config::Inline(config)).unwrap()
}

fn condition(conditions: &NodeConditions, kind: &str) -> (ConditionStatus, String, String) {
    let mut node = NodeTemplate::default();
    conditions.apply(&mut node);
    let found = node.conditions.into_iter().find(|condition| condition.kind == kind).unwrap();
    (found.status, found.reason, found.message)
}

#[test]
fn a_node_of_plain_processes_reports_it_prominently() {
    let conditions = NodeConditions::new(Isolation::Process, false, Some("no root".into()));
    let (status, reason, message) = condition(&conditions, ISOLATED);
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "PlainProcesses"));
    assert!(message.contains("PLAIN PROCESSES") && message.contains("doctor"), "{message}");
    let mut node = NodeTemplate::default();
    conditions.apply(&mut node);
    assert_eq!(node.labels[ISOLATION], "process");
    let containers = NodeConditions::new(Isolation::Oci, true, None);
    assert_eq!(condition(&containers, ISOLATED).0, ConditionStatus::True);
    containers.apply(&mut node);
    assert_eq!(node.labels[ISOLATION], "oci");
}

#[test]
fn falling_back_to_the_hosts_network_is_a_condition_of_the_node() {
    let (status, reason, message) =
        condition(&NodeConditions::new(Isolation::Oci, false, Some("no CAP_NET_ADMIN".into())), NETWORKED);
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "HostNetwork"));
    assert!(message.contains("no CAP_NET_ADMIN"), "{message}");
    assert_eq!(
        condition(&NodeConditions::new(Isolation::Oci, true, None), NETWORKED).0,
        ConditionStatus::True
    );
    let (status, reason, message) =
        condition(&NodeConditions::new(Isolation::Oci, true, Some("no nf_tables".into())), NETWORKED);
    assert_eq!((status, reason.as_str()), (ConditionStatus::True, "Limited"));
    assert!(message.contains("no nf_tables"), "{message}");
}

#[test]
fn two_nodes_with_the_same_name_do_not_share_a_cgroup() {
    let settings = read(json!({}));
    let of =
        |settings: &Settings, folder: &str| settings.engine.cgroup_root(&context(Path::new(folder), "node"));
    let one = of(&settings, "/a");
    assert_ne!(one, of(&settings, "/b"));
    assert_eq!(one, of(&settings, "/a"), "the name is stable");
    assert!(one.starts_with("/virtual-kubelet-node-"), "{one}");
    assert_eq!(of(&read(json!({"cgroupRoot": "/x"})), "/a"), "/x");
}

#[tokio::test]
async fn only_linux_is_supported() {
    let folder = tempfile::tempdir().unwrap();
    let windows = Context { operating_system: "windows".to_owned(), ..context(folder.path(), "n") };
    let refused = LocalFactory::default().open(Config::Default, windows).await;
    let error = refused.err().unwrap();
    assert_eq!(*error.kind(), Kind::Invalid);
    assert!(error.message().contains("windows"), "{error}");
}

#[tokio::test]
async fn plain_processes_have_no_bridge() {
    let settings = read(json!({"network": "bridge"}));
    let refused = open_network(&settings, Isolation::Process, Path::new("/nonexistent")).await;
    assert!(refused.err().unwrap().message().contains("level oci"));
    let host =
        open_network(&read(json!({})), Isolation::Process, Path::new("/nonexistent")).await.ok().unwrap();
    assert!(host.network.is_none() && host.problem.is_some());
    let chosen =
        open_network(&read(json!({"network": "host"})), Isolation::Oci, Path::new("/nonexistent")).await;
    assert!(chosen.ok().unwrap().problem.is_none(), "a configured host network is not a problem");
}

#[tokio::test]
async fn cleaning_up_a_node_that_never_ran_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    remove_node(Config::Default, context(folder.path(), "n")).await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
