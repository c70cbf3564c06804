//! Answers of the service, also odd ones.

use serde_json::{Value, json};
use vk_container_group::backend::{ContainerState, GroupState, Observed};
use vk_provider::EventKind;

use super::*;

fn group_of(value: Value) -> Observed {
    group(&serde_json::from_value(value).unwrap()).unwrap()
}

fn status_of(value: Value) -> Observed {
    status(&serde_json::from_value(value).unwrap()).unwrap()
}

fn running() -> Value {
    json!({
        "ContainerGroupId": "eci-1", "ContainerGroupName": "vk-n4gb6kss6vfq5hk6h4nx6cu4ce", "Status": "Running",
        "Cpu": 2.0, "Memory": 4.0, "InstanceType": "", "ZoneId": "cn-hangzhou-b", "IntranetIp": "10.0.0.5",
        "Ipv6Address": "2001:db8::5", "InternetIp": "203.0.113.5", "CreationTime": "2026-01-01T00:00:00Z",
        "Tags": [
            {"Key": "vk-cluster", "Value": "shop"}, {"Key": "vk-node", "Value": "eci"}, {"Key": "vk-namespace", "Value": "ns"},
            {"Key": "vk-name", "Value": "web"}, {"Key": "vk-uid", "Value": "u-1"}, {"Key": "vk-attempt", "Value": "1"},
            {"Key": "vk-spec", "Value": "abc"}, {"Key": "vk-layout", "Value": "1"},
        ],
        "Containers": [{
            "Name": "web", "Image": "nginx:1", "Ready": true, "RestartCount": 1,
            "CurrentState": {"State": "Running", "StartTime": "2026-01-01T00:01:00Z"},
            "PreviousState": {"State": "Terminated", "ExitCode": 137, "Signal": 9, "Reason": "OOMKilled",
                "StartTime": "2026-01-01T00:00:30Z", "FinishTime": "2026-01-01T00:00:50Z"},
        }],
        "InitContainers": [{"Name": "setup", "CurrentState": {"State": "Terminated", "ExitCode": 0, "Reason": "Completed"}}],
        "Events": [{"Type": "Warning", "Reason": "BackOff", "Message": "again", "LastTimestamp": "2026-01-01T00:00:55Z"}],
    })
}

#[test]
fn a_running_group_is_read_completely() {
    let observed = group_of(running());
    assert_eq!(observed.malformed, Vec::<String>::new());
    let owner = observed.owner.as_ref().unwrap();
    assert_eq!((&*owner.cluster, &*owner.node, &*owner.pod.name), ("shop", "eci", "web"));
    assert_eq!(observed.state, Some(GroupState::Running));
    assert_eq!(observed.size.as_ref().unwrap().to_string(), "2-4Gi");
    let addresses: Vec<String> = observed.addresses.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.5", "2001:db8::5"]);
    assert_eq!(observed.public_address.unwrap().to_string(), "203.0.113.5");
    let web = &observed.containers.as_ref().unwrap()[0];
    assert_eq!((web.ready, web.restarts), (Some(true), Some(1)));
    let previous = web.previous.as_ref().unwrap();
    assert_eq!(
        (previous.exit_code, previous.signal, previous.reason.as_deref()),
        (Some(137), Some(9), Some("OOMKilled"))
    );
    assert_eq!(observed.started.unwrap().to_string(), "2026-01-01T00:00:30Z", "of the instance before");
    let mut again = running();
    again["Containers"][0]["RestartCount"] = json!(2);
    assert_eq!(group_of(again).started, None, "nobody knows");
    assert!(
        matches!(&observed.init_containers.as_ref().unwrap()[0].state, Some(ContainerState::Terminated(ended)) if ended.exit_code == Some(0))
    );
    assert_eq!(
        (observed.events[0].kind, observed.events[0].reason.as_str()),
        (EventKind::Warning, "BackOff")
    );
    assert!(observed.complete && !observed.preempted && observed.message.is_none());
}

#[test]
fn every_documented_state_of_a_group_is_known() {
    for (text, state) in [
        ("Scheduling", GroupState::Provisioning),
        ("Pending", GroupState::Provisioning),
        ("Running", GroupState::Running),
        ("Restarting", GroupState::Running),
        ("Updating", GroupState::Running),
        ("Succeeded", GroupState::Succeeded),
        ("Failed", GroupState::Failed),
        ("ScheduleFailed", GroupState::Failed),
        ("Expired", GroupState::Failed),
        ("Terminating", GroupState::Deleting),
    ] {
        assert_eq!(group_state(text), Some(state), "{text}");
    }
}

#[test]
fn a_group_that_failed_says_why_with_its_newest_warning() {
    let observed = group_of(json!({
        "ContainerGroupId": "eci-1", "Status": "ScheduleFailed", "FailedTime": "2026-01-01T00:05Z",
        "Events": [
            {"Type": "Warning", "Reason": "NoStock", "Message": "sold out", "LastTimestamp": "2026-01-01T00:04:00Z"},
            {"Type": "Warning", "Reason": "Older", "Message": "x", "LastTimestamp": "2026-01-01T00:03:00Z"},
            {"Type": "Normal", "Reason": "Newest", "Message": "x", "LastTimestamp": "2026-01-01T00:05:00Z"},
        ],
    }));
    assert_eq!(observed.reason.as_deref(), Some("ScheduleFailed"));
    assert_eq!(observed.message.as_deref(), Some("NoStock: sold out"));
    assert_eq!(observed.finished.unwrap().to_string(), "2026-01-01T00:05:00Z");
}

#[test]
fn a_spot_group_that_was_taken_back_is_preempted() {
    let group = |strategy: &str, status: &str, reason: &str| {
        group_of(json!({
            "ContainerGroupId": "eci-1", "Status": status, "SpotStrategy": strategy,
            "Events": [{"Type": "Warning", "Reason": reason}],
        }))
        .preempted
    };
    assert!(group("SpotAsPriceGo", "Failed", "BidFailed"));
    assert!(group("SpotAsPriceGo", "Expired", "Other"));
    assert!(!group("SpotAsPriceGo", "Running", "BidFailed"));
    assert!(!group("SpotAsPriceGo", "Failed", "Other"));
    assert!(!group("NoSpot", "Failed", "BidFailed"));
}

#[test]
fn the_status_feed_is_read_with_all_spellings_of_its_times() {
    for key in ["StartedAt", "startedAt", "StartedAtstartedAt"] {
        let observed = status_of(json!({
            "ContainerGroupId": "eci-1", "Name": "vk-1", "Status": "Running",
            "PodStatus": {
                "Phase": "Running", "PodIp": "10.0.0.5", "PodIps": [{"Ip": "10.0.0.5"}, {"Ip": "2001:db8::5"}],
                "ContainerStatuses": [{
                    "Name": "web", "Ready": true, "Started": true, "RestartCount": 2, "ImageID": "sha256:1",
                    "State": {"Running": {key: "2026-01-01T00:01:00Z"}},
                    "LastState": {"Terminated": {"ExitCode": 1, "Reason": "Error", "FinishedAt": "2026-01-01T00:00:50Z"}},
                }],
            },
        }));
        assert!(!observed.complete && observed.owner.is_none());
        assert_eq!(observed.addresses.as_ref().unwrap().len(), 2);
        let web = &observed.containers.as_ref().unwrap()[0];
        assert!(matches!(&web.state, Some(ContainerState::Running { started: Some(_) })), "{key}: {web:?}");
        assert_eq!(web.previous.as_ref().unwrap().exit_code, Some(1));
        assert_eq!((web.started, web.image_id.as_deref()), (Some(true), Some("sha256:1")));
    }
}

#[test]
fn unknown_states() {
    let observed = group_of(json!({
        "ContainerGroupId": "eci-1", "Status": "Dreaming",
        "Containers": [{"Name": "web", "CurrentState": {"State": "Snoring"}}],
    }));
    assert_eq!((observed.state, observed.containers.as_ref().unwrap()[0].state.as_ref()), (None, None));
    assert_eq!(observed.malformed, ["state \"Dreaming\"", "state of container web \"Snoring\""]);
    let observed = status_of(json!({"ContainerGroupId": "eci-1", "Status": "Dreaming"}));
    assert_eq!((observed.state, observed.malformed.len()), (None, 1));
}

#[test]
fn malformed_addresses_times_and_codes_are_reported_and_left_out() {
    let observed = group_of(json!({
        "ContainerGroupId": "eci-1", "Status": "Failed", "IntranetIp": "10.0.0.300", "CreationTime": "yesterday",
        "Containers": [{"Name": "web", "CurrentState": {"State": "Terminated", "ExitCode": 99_999_999_999_i64}}],
    }));
    assert_eq!((observed.addresses, observed.created), (None, None));
    assert_eq!(observed.malformed.len(), 3, "{:?}", observed.malformed);
    let containers = observed.containers.unwrap();
    assert!(
        matches!(&containers[0].state, Some(ContainerState::Terminated(ended)) if ended.exit_code.is_none())
    );
}

#[test]
fn unknown_json_fields() {
    let mut value = running();
    let expected = group_of(value.clone());
    for pointer in ["", "/Containers/0", "/Containers/0/CurrentState", "/Events/0", "/Tags/0"] {
        value.pointer_mut(pointer).unwrap()["BrandNew"] = json!({"of": ["tomorrow"]});
    }
    assert_eq!(group_of(value), expected);
}

#[test]
fn numbers_as_text_and_text_as_numbers() {
    let mut value = running();
    value["Cpu"] = json!("2.0");
    value["Memory"] = json!("4");
    value["Containers"][0]["Ready"] = json!("true");
    value["Containers"][0]["RestartCount"] = json!("1");
    value["Containers"][0]["PreviousState"]["ExitCode"] = json!("137");
    value["Containers"][0]["PreviousState"]["Signal"] = json!(9.0);
    value["Events"][0]["Message"] = json!("again");
    assert_eq!(group_of(value), group_of(running()));
}

#[test]
fn a_page_with_what_cannot_be_read_is_incomplete() {
    let page = |value: Value| group_page(&serde_json::from_value(value).unwrap(), |_| true);
    let whole = page(json!({"ContainerGroups": [running()], "NextToken": "x"}));
    assert_eq!((whole.groups.len(), whole.incomplete, whole.next.as_deref()), (1, false, Some("x")));
    assert!(page(json!({})).incomplete, "there is no list");
    assert!(page(json!({"ContainerGroups": [running(), 7]})).incomplete);
    assert!(page(json!({"ContainerGroups": [{"Status": "Running"}]})).incomplete, "a group without id");
    let others = json!({"ContainerGroups": [{"ContainerGroupId": "eci-9", "Status": "Running"}]});
    let others = page(others);
    assert!(others.groups.is_empty() && !others.incomplete, "a group of someone else");
    let list = serde_json::from_value(json!({"ContainerGroups": [running()]})).unwrap();
    assert!(group_page(&list, |owner| &*owner.cluster == "other").groups.is_empty());
    let feed = |value: Value| status_page(&serde_json::from_value(value).unwrap());
    assert!(feed(json!({})).incomplete && !feed(json!({"Data": []})).incomplete);
}

#[test]
fn groups_of_the_go_provider_have_an_owner() {
    let tags = [
        ("ClusterName", "shop"),
        ("NodeName", "eci"),
        ("NameSpace", "ns"),
        ("PodName", "web"),
        ("UID", "u-1"),
    ];
    let tags: Vec<Value> = tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect();
    let observed = group_of(json!({"ContainerGroupId": "eci-1", "Tags": tags}));
    assert_eq!(&*observed.owner.unwrap().pod.uid, "u-1");
}
