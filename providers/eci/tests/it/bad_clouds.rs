//! Bad input and bad clouds. Nothing of it is believed, and users learn what to do.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use vk_provider::{Error, Finding, error::Kind, finding::FindingLevel, inventory::InventoryScope};

use crate::{
    scripted_server::{Received, Reply, ScriptedServer},
    support::{findings, group, groups, inventory},
};

/// The error of a list when all calls are answered like this.
async fn refusal(reply: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Error {
    let server = ScriptedServer::start(reply).await;
    groups(&server.url).await.unwrap_err()
}

/// A service that is well, but for one action.
fn well_but_for(action: &'static str, reply: impl Fn() -> Reply) -> impl Fn(&Received) -> Reply {
    move |received| {
        if received.action == action {
            return reply();
        }
        match received.action.as_str() {
            "DescribeRegions" => {
                Reply::json(&json!({"Regions": [{"RegionId": "cn-hangzhou"}, {"RegionId": "cn-beijing"}]}))
            }
            "DescribeContainerGroups" => Reply::json(&json!({"ContainerGroups": [group("eci-1", "web")]})),
            "CreateContainerGroup" => {
                assert_eq!(received.parameter("DryRun"), "true", "doctor creates nothing");
                Reply::refusal(400, "DryRunOperation", "the request would have succeeded")
            }
            "ListUsage" => Reply::json(&json!({"Attributes": {"UsedCpu": "10", "MaxCpu": 100}})),
            "DescribeContainerGroupStatus" => Reply::json(&json!({"Data": [{"ContainerGroupId": "eci-1"}]})),
            "DescribeContainerGroupEvents" => Reply::json(&json!({"Data": []})),
            "DescribeMultiContainerGroupMetric" => Reply::json(&json!({"Records": []})),
            "DeleteContainerGroup"
            | "UpdateContainerGroup"
            | "DescribeContainerLog"
            | "ExecContainerCommand" => {
                assert_ne!(received.parameter("ContainerGroupId"), "eci-1", "doctor changes nothing");
                Reply::refusal(
                    404,
                    "ContainerGroup.NotFound",
                    "The specified container group does not exist.",
                )
            }
            other => panic!("{other} is not expected"),
        }
    }
}

fn finding<'a>(all: &'a [Finding], what: &str) -> &'a Finding {
    all.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {all:?}"))
}

#[tokio::test]
async fn a_service_that_is_well_has_no_findings() {
    let server = ScriptedServer::start(well_but_for("", || Reply::Stall)).await;
    let all = findings(&server.url).await;
    assert!(all.iter().all(|finding| finding.level == FindingLevel::Ok), "{all:?}");
    for what in ["cluster", "credentials", "region", "clock", "permission to list", "vSwitch vsw-a", "quota"]
    {
        finding(&all, what);
    }
}

#[tokio::test]
async fn wrong_access_key() {
    let error =
        refusal(|_| Reply::refusal(404, "InvalidAccessKeyId.NotFound", "Specified access key is not found."))
            .await;
    assert_eq!(*error.kind(), Kind::Denied);
    assert!(error.message().contains("check the id of the access key"), "{error}");
}

#[tokio::test]
async fn wrong_secret_key() {
    let said = "Specified signature is not matched; server string to sign is: test-secret";
    let error = refusal(move |_| Reply::refusal(400, "SignatureDoesNotMatch", said)).await;
    assert_eq!(*error.kind(), Kind::Denied);
    assert!(error.message().contains("check the secret of the access key"), "{error}");
    assert!(!error.message().contains("test-secret"), "{error}");
}

#[tokio::test]
async fn expired_token() {
    let error =
        refusal(|_| Reply::refusal(400, "InvalidSecurityToken.Expired", "Security token has expired")).await;
    assert_eq!(*error.kind(), Kind::Denied);
    assert!(error.message().contains("renewed"), "{error}");
}

#[tokio::test]
async fn clock_off_by_an_hour_is_reported() {
    let server = ScriptedServer::start(|_| {
        let body = json!({"Code": "InvalidTimeStamp.Expired", "Message": "Specified time stamp is expired."});
        Reply::Answer(400, "Date: Thu, 01 Jan 2026 01:00:00 GMT\r\n", "application/json", body.to_string())
    })
    .await;
    let all = findings(&server.url).await;
    let clock = finding(&all, "clock");
    assert_eq!(clock.level, FindingLevel::Error);
    assert!(clock.found.contains("01 Jan 2026 01:00:00") && clock.remedy.contains("clock"), "{clock}");
}

#[tokio::test]
async fn vswitch_does_not_exist() {
    let refused =
        || Reply::refusal(404, "InvalidVSwitchId.NotFound", "The specified VSwitch does not exist.");
    let server = ScriptedServer::start(well_but_for("CreateContainerGroup", refused)).await;
    let all = findings(&server.url).await;
    let found = finding(&all, "vSwitch vsw-a");
    assert_eq!(found.level, FindingLevel::Error);
    assert!(found.remedy.contains("vSwitches"), "{found}");
}

#[tokio::test]
async fn vswitch_of_another_region() {
    let refused =
        || Reply::refusal(400, "InvalidParameter.VSwitchId", "The VSwitch is not in region cn-hangzhou.");
    let server = ScriptedServer::start(well_but_for("CreateContainerGroup", refused)).await;
    let all = findings(&server.url).await;
    let found = finding(&all, "vSwitch vsw-a");
    assert_eq!(found.level, FindingLevel::Error);
    assert!(found.found.contains("cn-hangzhou") && found.remedy.contains("of this region"), "{found}");
}

#[tokio::test]
async fn endpoint_is_not_eci() {
    let html = || "<html><body>Welcome</body></html>".to_owned();
    for (status, more, kind) in [
        (200, "", "text/html"),
        (302, "Location: https://login.example/\r\n", "text/html"),
        (407, "Proxy-Authenticate: Basic\r\n", "text/html"),
        (502, "", "text/html"),
    ] {
        let error = refusal(move |_| Reply::Answer(status, more, kind, html())).await;
        assert!(matches!(error.kind(), Kind::Unavailable | Kind::Denied), "{status}: {error}");
    }
    let error = refusal(move |_| Reply::Answer(200, "", "text/html", html())).await;
    assert!(error.message().contains("check that the endpoint is right"), "{error}");
    // Another service that speaks JSON: nothing of it is taken for an empty list.
    let error = refusal(|_| Reply::json(&json!({"status": "ok"}))).await;
    assert_eq!(*error.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn truncated_response() {
    let whole = json!({"ContainerGroups": [group("eci-1", "web")]}).to_string();
    let cut = whole[..whole.len() - 10].to_owned();
    let error = refusal(move |_| Reply::Answer(200, "", "application/json", cut.clone())).await;
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("cut short"), "{error}");
}

#[tokio::test]
async fn response_of_50_mb_is_bounded() {
    let error = refusal(|_| Reply::Flood(50 << 20)).await;
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("larger than"), "{error}");
}

#[tokio::test]
async fn unknown_json_fields() {
    let server = ScriptedServer::start(|_| {
        let mut one = group("eci-1", "web");
        one["BrandNew"] = json!({"of": ["tomorrow"]});
        Reply::json(&json!({"ContainerGroups": [one], "More": {"of": 1}}))
    })
    .await;
    assert_eq!(groups(&server.url).await.unwrap().len(), 1);
}

#[tokio::test]
async fn unknown_states() {
    let server = ScriptedServer::start(|_| {
        let mut one = group("eci-1", "web");
        one["Status"] = json!("Dreaming");
        Reply::json(&json!({"ContainerGroups": [one]}))
    })
    .await;
    // It is shown, and so is what the service calls it.
    let found = groups(&server.url).await.unwrap().remove(0);
    assert_eq!(found.state, "Unknown");
    assert!(found.remark.as_ref().is_some_and(|remark| remark.contains("Dreaming")), "{found:?}");
}

#[tokio::test]
async fn numbers_as_text_and_text_as_numbers() {
    let server = ScriptedServer::start(|_| {
        let mut one = group("eci-1", "web");
        (one["Cpu"], one["Memory"]) = (json!("2.0"), json!("4"));
        one["ContainerGroupId"] = json!(17);
        Reply::json(&json!({"ContainerGroups": [one], "TotalCount": "1", "NextToken": ""}))
    })
    .await;
    let found = groups(&server.url).await.unwrap();
    assert_eq!((found[0].id.as_str(), found[0].size.as_ref().unwrap().to_string().as_str()), ("17", "2-4Gi"));
    assert_eq!(found[0].price.as_ref().unwrap().to_string(), "0.1224 USD");
}

/// A page of our groups; the groups of the Go provider are none.
fn page(received: &Received, answer: impl Fn(&str) -> Value) -> Reply {
    if received.parameter("Tag.1.Key") == "ClusterName" {
        return Reply::json(&json!({"ContainerGroups": []}));
    }
    Reply::json(&answer(received.parameter("NextToken")))
}

#[tokio::test]
async fn repeated_pages() {
    let error = refusal(|received| {
        page(received, |_| json!({"ContainerGroups": [group("eci-1", "web")], "NextToken": "again"}))
    })
    .await;
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("repeats its pages"), "{error}");
}

#[tokio::test]
async fn page_token_refused() {
    let error = refusal(|received| {
        if received.parameter("NextToken") == "2" {
            return Reply::refusal(400, "InvalidParameter.NextToken", "The token has expired.");
        }
        page(received, |_| json!({"ContainerGroups": [group("eci-1", "web")], "NextToken": "2"}))
    })
    .await;
    assert!(error.message().contains("NextToken"), "half a list is no list: {error}");
}

#[tokio::test]
async fn list_shrinks_and_grows_while_read() {
    let server = ScriptedServer::start(|received| {
        page(received, |token| match token {
            "" => json!({"ContainerGroups": [group("eci-1", "a"), group("eci-2", "b")], "NextToken": "2"}),
            // The first page has lost a group meanwhile, and the list has got others.
            "2" => json!({"ContainerGroups": [group("eci-2", "b"), group("eci-3", "c")], "NextToken": "3"}),
            _ => json!({"ContainerGroups": [group("eci-3", "c"), group("eci-4", "d")]}),
        })
    })
    .await;
    let found = groups(&server.url).await.unwrap();
    let ids: BTreeSet<&str> = found.iter().map(|group| group.id.as_str()).collect();
    assert_eq!((found.len(), ids.len()), (4, 4), "each once: {ids:?}");
}

#[tokio::test]
async fn error_inside_200() {
    let error = refusal(|_| Reply::json(&json!({"Code": "Throttling.User", "Message": "Too fast."}))).await;
    assert!(matches!(error.kind(), Kind::Throttled { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn response_after_deadline() {
    let error = refusal(|_| Reply::Stall).await;
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("within"), "{error}");
}

#[tokio::test]
async fn tls_failure() {
    let server = ScriptedServer::start_tls(|_| Reply::json(&json!({"ContainerGroups": []}))).await;
    let error = groups(&server.url).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("TLS"), "{error}");
    assert!(
        server.calls("DescribeContainerGroups").is_empty(),
        "nothing is sent without a trusted certificate"
    );
}

#[tokio::test]
async fn dns_unreachable() {
    let error = groups("https://eci.invalid").await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("cannot resolve eci.invalid"), "{error}");
}

#[tokio::test]
async fn groups_of_others_are_neither_shown_nor_removed() {
    let server = ScriptedServer::start(|received| {
        let mut other = group("eci-9", "other");
        other["Tags"][0]["Value"] = json!("someone-else");
        if received.action == "DeleteContainerGroup" {
            return Reply::json(&json!({}));
        }
        let groups = json!([other, group("eci-1", "web")]);
        Reply::json(&json!({"ContainerGroups": groups}))
    })
    .await;
    let inventory = inventory(&server.url).await;
    let scope = InventoryScope::default();
    let ids: Vec<String> =
        inventory.groups(&scope).await.unwrap().into_iter().map(|group| group.id).collect();
    assert_eq!(ids, ["eci-1"]);
    assert_eq!(*inventory.remove(&scope, "eci-9").await.unwrap_err().kind(), Kind::NotFound);
    assert!(server.calls("DeleteContainerGroup").is_empty());
    inventory.remove(&scope, "eci-1").await.unwrap();
    assert_eq!(server.calls("DeleteContainerGroup")[0].parameter("ContainerGroupId"), "eci-1");
}
