//! `virtual-kubelet doctor` on an emulated account.

use std::sync::Arc;

use serde_json::json;
use vk_provider::{
    Config, Context, Factory as _, Finding,
    explanation::{BackendAnswer, ExplainRequest},
    finding::FindingLevel,
    inventory::InventoryScope,
};
use vk_provider_eci::EciFactory;
use vk_testing::cloud::eci::{self, EciEmulator, Fault, Options, Rule, Timing};

use crate::support::context;

/// The permissions that a group of an existing account shows, what they are called, and how bad it is to lack them.
const PERMISSIONS: [(&str, &str, FindingLevel); 9] = [
    ("CreateContainerGroup", "vSwitch vsw-a", FindingLevel::Error),
    ("DeleteContainerGroup", "permission to delete", FindingLevel::Error),
    ("DescribeContainerGroupStatus", "permission to read statuses", FindingLevel::Error),
    ("DescribeContainerGroupEvents", "permission to read events", FindingLevel::Warning),
    ("UpdateContainerGroup", "permission to update", FindingLevel::Warning),
    ("DescribeContainerLog", "permission to read logs", FindingLevel::Warning),
    ("ExecContainerCommand", "permission to exec", FindingLevel::Warning),
    ("DescribeMultiContainerGroupMetric", "permission to read usage", FindingLevel::Warning),
    ("DescribeContainerGroupPrice", "permission to ask for prices", FindingLevel::Warning),
];

/// The account, and the group that somebody has in it.
async fn account() -> (EciEmulator, String) {
    let mut options = Options::new();
    options.settings.timing = Timing::instant();
    let emulator = EciEmulator::start(options).await.unwrap();
    let parameters = [
        ("RegionId", "cn-hangzhou"),
        ("ContainerGroupName", "somebody"),
        ("SecurityGroupId", "sg-1"),
        ("VSwitchId", "vsw-a"),
        ("Container.1.Name", "main"),
        ("Container.1.Image", "image:1"),
    ];
    let id = emulator.create(&parameters.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let id = id.unwrap_or_else(|error| panic!("{error:?}"));
    (emulator, id)
}

/// The three required keys, and how to reach the emulator. It asks the service for prices.
fn minimal(emulator: &EciEmulator) -> Config {
    Config::Inline(json!({
        "region": "cn-hangzhou", "vSwitches": ["vsw-a"], "securityGroup": "sg-1", "endpoint": emulator.endpoint(),
        "credentials": "static", "accessKey": "testid", "secretKey": "testsecret", "prices": "cloud",
    }))
}

async fn examine(emulator: &EciEmulator) -> Vec<Finding> {
    let context = Context { cluster: Some("uid-of-kube-system".to_owned()), ..context() };
    EciFactory::default().examine(minimal(emulator), context).await
}

fn finding<'a>(all: &'a [Finding], what: &str) -> &'a Finding {
    all.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {all:?}"))
}

#[tokio::test]
async fn every_permission_is_checked_and_nothing_is_changed() {
    let (emulator, group) = account().await;
    let before = emulator.request(&group);
    let all = examine(&emulator).await;
    assert!(all.iter().all(|finding| finding.level == FindingLevel::Ok), "{all:?}");
    for (_, what, _) in PERMISSIONS {
        finding(&all, what);
    }
    let groups = emulator.groups();
    assert_eq!((groups.len(), &groups[0].id, emulator.request(&group)), (1, &group, before));
    assert_ne!(groups[0].status, "Terminating");
}

#[tokio::test]
async fn each_missing_permission_is_named_with_what_to_allow() {
    let (emulator, _) = account().await;
    for (action, what, level) in PERMISSIONS {
        emulator.deny(action, true);
        let all = examine(&emulator).await;
        emulator.deny(action, false);
        let found = finding(&all, what);
        assert_eq!(found.level, level, "{action}: {found}");
        assert!(found.remedy.contains("RAM policy"), "{action}: {found}");
        let others = all.iter().filter(|finding| finding.what != what);
        assert!(others.clone().all(|finding| finding.level == FindingLevel::Ok), "{action}: {all:?}");
    }
}

#[tokio::test]
async fn a_missing_permission_to_list_is_suspected_if_the_list_is_empty() {
    let (emulator, _) = account().await;
    emulator.deny("DescribeContainerGroups", true);
    let all = examine(&emulator).await;
    let found = finding(&all, "permission to list");
    assert_eq!(found.level, FindingLevel::Warning);
    for action in ["DescribeContainerGroups", "DescribeContainerGroupStatus", "DescribeContainerGroupEvents"]
    {
        assert!(found.remedy.contains(action), "{found}");
    }
}

#[tokio::test]
async fn a_check_that_the_service_does_not_answer_is_no_missing_permission() {
    let (emulator, _) = account().await;
    let fault = Fault::Error { status: 503, code: "ServiceUnavailable".to_owned(), retry_after: None };
    emulator.add_fault(Rule { action: Some("ExecContainerCommand".to_owned()), ..Rule::always(fault) });
    let all = examine(&emulator).await;
    let found = finding(&all, "permission to exec");
    assert_eq!(found.level, FindingLevel::Warning);
    assert!(found.found.contains("cannot be checked"), "{found}");
}

#[tokio::test]
async fn a_cluster_without_a_name_is_an_error_that_says_what_to_do() {
    let (emulator, _) = account().await;
    let all = EciFactory::default().examine(minimal(&emulator), context()).await;
    let found = finding(&all, "cluster");
    assert_eq!(found.level, FindingLevel::Error);
    assert!(found.remedy.contains("clusterName") && found.remedy.contains("--kubeconfig"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the vendor SDKs: make test"]
async fn the_vendors_models_know_all_that_the_commands_say() {
    let (emulator, group) = account().await;
    examine(&emulator).await;
    let factory = EciFactory::default();
    let inventory = factory.inventory(minimal(&emulator), context()).await.unwrap().unwrap();
    let scope = InventoryScope { cluster: Some("shop".to_owned()), node: None };
    inventory.groups(&scope).await.unwrap();
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    });
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    let request = ExplainRequest { pod, ask_backend: true };
    let answer = factory.explain(minimal(&emulator), context(), request).await.unwrap();
    assert!(matches!(answer.backend, Some(BackendAnswer::Accepted(_))), "{answer:?}");
    assert!(emulator.request(&group).is_some());
    tokio::task::block_in_place(|| eci::judge(&emulator));
}
