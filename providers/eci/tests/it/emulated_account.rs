//! What people see of an account, with the emulator.

use serde_json::{Value, json};
use vk_provider::{Config, Factory as _, inventory::InventoryScope};
use vk_provider_eci::EciFactory;
use vk_testing::cloud::eci::{EciEmulator, Options};

use crate::support::context;

/// An account where a CPU costs 0.000049 CNY in a second and a GiB 0.00000613, as the vendor lists it.
async fn account() -> EciEmulator {
    let mut options = Options::new();
    options.settings.cpu_hour = 0.1764;
    options.settings.memory_hour = 0.022_068;
    options.settings.currency = String::from("CNY");
    EciEmulator::start(options).await.unwrap()
}

/// A configuration that does not name the cluster.
fn config(emulator: &EciEmulator) -> Config {
    Config::Inline(json!({
        "region": "cn-hangzhou", "vSwitches": ["vsw-a"], "securityGroup": "sg-1", "endpoint": emulator.endpoint(),
        "credentials": "static", "accessKey": "testid", "secretKey": "testsecret", "prices": "cloud",
    }))
}

/// Adds a group with these tags.
fn add(emulator: &EciEmulator, name: &str, tags: &[(&str, &str)]) -> String {
    let mut parameters = vec![
        ("RegionId".to_owned(), "cn-hangzhou".to_owned()),
        ("ContainerGroupName".to_owned(), name.to_owned()),
        ("SecurityGroupId".to_owned(), "sg-1".to_owned()),
        ("VSwitchId".to_owned(), "vsw-a".to_owned()),
        ("Container.1.Name".to_owned(), "main".to_owned()),
        ("Container.1.Image".to_owned(), "image:1".to_owned()),
    ];
    for (at, (key, value)) in (1..).zip(tags) {
        parameters.push((format!("Tag.{at}.Key"), (*key).to_owned()));
        parameters.push((format!("Tag.{at}.Value"), (*value).to_owned()));
    }
    emulator.create(&parameters).unwrap_or_else(|error| panic!("{error:?}"))
}

const GO_TAGS: [(&str, &str); 6] = [
    ("ClusterName", "shop"),
    ("NodeName", "eci"),
    ("NameSpace", "shop"),
    ("PodName", "web"),
    ("UID", "6f0c1f2a-52f5-4b0e-9d5e-3f1b7f0a9c11"),
    ("CreationTimestamp", "2026-01-01T00-00-00Z"),
];

#[tokio::test]
async fn the_groups_of_the_go_provider_are_shown_for_a_cluster_that_only_the_question_names() {
    let emulator = account().await;
    let ours = add(&emulator, "shop-web", &GO_TAGS);
    let mut others = GO_TAGS;
    others[0].1 = "another";
    let theirs = add(&emulator, "shop-web", &others);
    let inventory = EciFactory::default().inventory(config(&emulator), context()).await.unwrap().unwrap();
    let scope = InventoryScope { cluster: Some("shop".to_owned()), node: None };
    let found = inventory.groups(&scope).await.unwrap();
    let ids: Vec<&str> = found.iter().map(|group| group.id.as_str()).collect();
    assert_eq!(ids, [ours.as_str()]);
    assert_eq!(found[0].remark.as_deref(), Some("created by the Go provider"));
    assert_eq!(found[0].pod.as_ref().map(|pod| &*pod.name), Some("web"));
    let refused = inventory.remove(&scope, &theirs).await.unwrap_err();
    assert_eq!(*refused.kind(), vk_provider::error::Kind::NotFound);
    inventory.remove(&scope, &ours).await.unwrap();
    let of_others = inventory.groups(&InventoryScope::default()).await.unwrap_err();
    assert!(of_others.message().contains("--cluster-name"), "{of_others}");
}

#[tokio::test]
async fn the_service_names_prices_of_a_second_and_people_see_those_of_an_hour() {
    let emulator = account().await;
    add(&emulator, "shop-web", &GO_TAGS);
    let inventory = EciFactory::default().inventory(config(&emulator), context()).await.unwrap().unwrap();
    let scope = InventoryScope { cluster: Some("shop".to_owned()), node: None };
    let found = inventory.groups(&scope).await.unwrap();
    assert_eq!(found[0].size.as_ref().unwrap().to_string(), "2-4Gi");
    let price = found[0].price.as_ref().unwrap();
    assert!((price.per_hour - 0.000_122_52 * 3600.0).abs() < 1e-9, "{price:?}");
    assert_eq!(price.to_string(), "0.4411 CNY");
    let journal = emulator.journal();
    let asked = journal.iter().find(|entry| entry["action"] == "DescribeContainerGroupPrice").unwrap();
    let said: &Value = &asked["response"]["PriceInfo"]["Price"];
    // What the vendor's price list says for 2 vCPUs and 4 GiB.
    assert_eq!((&said["OriginalPrice"], &said["TradePrice"]), (&json!(0.000_122_52), &json!(0.000_122_52)));
}
