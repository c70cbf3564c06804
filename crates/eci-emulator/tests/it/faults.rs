//! Every fault.

use std::time::Duration;

use serde_json::{Value, json};
use vk_eci_emulator::{EciEmulator, Fault, Rule};

use crate::caller::{Answer, call, create, exchange, group, simulated, try_call};

const CREATE: &str = "CreateContainerGroup";
const LIST: &str = "DescribeContainerGroups";

/// The answer to a create that has a fault, and how many groups there are afterwards.
async fn faulty_create(fault: Fault) -> (Option<Answer>, usize) {
    let emulator = simulated().await;
    emulator.add_fault(Rule::once(CREATE, fault));
    let mut parameters = group("vk-1", &[]);
    parameters.push(("RegionId", "cn-hangzhou"));
    let answer = tokio::time::timeout(Duration::from_secs(2), try_call(&emulator, CREATE, &parameters)).await;
    (answer.ok().flatten(), emulator.groups().len())
}

async fn faulty_list(fault: Fault) -> Value {
    let emulator = simulated().await;
    create(&emulator, "vk-1", &[("Tag.1.Key", "number"), ("Tag.1.Value", "12")]).await;
    emulator.add_fault(Rule::once(LIST, fault));
    call(&emulator, LIST, &[]).await.json()
}

#[tokio::test]
async fn errors_come_before_or_after_a_call_is_carried_out() {
    let error =
        |after| Fault::Error { status: 503, code: "ServiceUnavailable".to_owned(), retry_after: after };
    let (answer, groups) = faulty_create(error(Some(1500))).await;
    let answer = answer.unwrap();
    assert_eq!((answer.status, groups, answer.code().as_str()), (503, 0, "ServiceUnavailable"));
    assert!(answer.head.contains("x-acs-retry-after: 1500"), "{answer:?}");
    let after = Fault::ErrorAfter { status: 500, code: "InternalError".to_owned() };
    let (answer, groups) = faulty_create(after).await;
    assert_eq!((answer.unwrap().code().as_str(), groups), ("InternalError", 1));
    let (answer, groups) = faulty_create(Fault::ErrorInside200 { code: "InternalError".to_owned() }).await;
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.code().as_str(), groups), (200, "InternalError", 0));
}

#[tokio::test]
async fn connections_are_reset_or_hang_before_or_after() {
    for (fault, groups) in
        [(Fault::ResetBefore, 0), (Fault::ResetAfter, 1), (Fault::HangBefore, 0), (Fault::HangAfter, 1)]
    {
        let (answer, existing) = faulty_create(fault.clone()).await;
        assert!(answer.is_none(), "{fault:?}");
        assert_eq!(existing, groups, "{fault:?}");
    }
}

#[tokio::test]
async fn answers_are_cut_blown_up_replaced_or_late() {
    let (answer, groups) = faulty_create(Fault::Truncated).await;
    assert!(serde_json::from_str::<Value>(&answer.unwrap().body).is_err());
    assert_eq!(groups, 1);
    let (answer, _) = faulty_create(Fault::Huge { bytes: 1 << 20 }).await;
    assert_eq!(answer.unwrap().body.len(), 1 << 20);
    let (answer, groups) = faulty_create(Fault::Html { status: 200 }).await;
    let answer = answer.unwrap();
    assert!(answer.head.contains("text/html") && answer.body.contains("<html>"), "{answer:?}");
    assert_eq!(groups, 0);
    let (answer, groups) = faulty_create(Fault::Redirect { location: "http://elsewhere/".to_owned() }).await;
    let answer = answer.unwrap();
    assert_eq!((answer.status, groups), (302, 0));
    assert!(answer.head.contains("Location: http://elsewhere/"), "{answer:?}");
    let (answer, groups) = faulty_create(Fault::Late { milliseconds: 5000 }).await;
    assert!(answer.is_none() && groups == 1, "it comes later");
}

#[tokio::test]
async fn answers_say_what_nobody_understands() {
    let list = faulty_list(Fault::UnknownFields).await;
    assert!(list["ContainerGroups"][0]["ShinyNewField"].is_object());
    let list = faulty_list(Fault::UnknownStates).await;
    assert_eq!(list["ContainerGroups"][0]["Status"], "Transmogrifying");
    let list = faulty_list(Fault::NumbersAsText).await;
    assert_eq!(list["ContainerGroups"][0]["Containers"][0]["RestartCount"], "0");
    assert_eq!(list["ContainerGroups"][0]["Containers"][0]["Ready"], "false");
    let list = faulty_list(Fault::TextAsNumbers).await;
    assert_eq!(list["ContainerGroups"][0]["Tags"][0]["Value"], 12.0);
    let list = faulty_list(Fault::EmptyList).await;
    assert_eq!((list["ContainerGroups"].clone(), list["TotalCount"].clone()), (json!([]), json!(0)));
}

async fn with_pages() -> EciEmulator {
    let emulator = simulated().await;
    for number in 0..50 {
        create(&emulator, &format!("vk-{number}"), &[]).await;
    }
    emulator
}

async fn page(emulator: &EciEmulator, token: &str) -> Value {
    call(emulator, LIST, &[("NextToken", token)]).await.json()
}

#[tokio::test]
async fn pages_are_repeated_refused_or_lost() {
    let emulator = with_pages().await;
    let first = page(&emulator, "").await;
    let second = first["NextToken"].as_str().unwrap();
    emulator.add_fault(Rule::always(Fault::RepeatedPage).of(LIST).on_page(2).times(1));
    assert_eq!(page(&emulator, second).await["NextToken"], second, "for ever");
    emulator.add_fault(Rule::always(Fault::PageTokenRefused).of(LIST).on_page(2).times(1));
    assert_eq!(page(&emulator, second).await["Code"], "InvalidParameter.NextToken");
    emulator.add_fault(Rule::always(Fault::LostPage).of(LIST).on_page(2).times(1));
    let lost = page(&emulator, second).await;
    assert_eq!(lost["ContainerGroups"], json!([]));
    assert_eq!(lost["TotalCount"], 50, "nothing says so");
    let whole = page(&emulator, second).await;
    assert_eq!(whole["ContainerGroups"].as_array().unwrap().len(), 20);
    let third = whole["NextToken"].as_str().unwrap();
    emulator.add_fault(Rule::always(Fault::PageTokenRefused).of(LIST).on_page(3));
    assert!(page(&emulator, second).await["Code"].is_null(), "only the third page");
    assert_eq!(page(&emulator, third).await["Code"], "InvalidParameter.NextToken");
}

#[tokio::test]
async fn random_faults_follow_their_seed() {
    let outcomes = async || {
        let emulator = simulated().await;
        let fault = Fault::Error { status: 500, code: "InternalError".to_owned(), retry_after: None };
        emulator.add_fault(Rule::always(fault).with_probability(0.5));
        let mut outcomes = Vec::new();
        for _ in 0..40 {
            outcomes.push(call(&emulator, "ListUsage", &[]).await.status);
        }
        outcomes
    };
    let first = outcomes().await;
    assert!(first.contains(&200) && first.contains(&500), "{first:?}");
    assert_eq!(first, outcomes().await);
}

#[tokio::test]
async fn another_process_controls_the_emulator_over_http() {
    let emulator = simulated().await;
    let id = create(&emulator, "vk-1", &[]).await;
    let control = async |method: &str, path: &str, body: Value| {
        let body = body.to_string();
        let request = format!(
            "{method} /control/{path} HTTP/1.1\r\nHost: eci\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(&emulator, &request).await.unwrap();
        (answer.status, answer.json())
    };
    let rule = json!({"action": "ListUsage", "times": 1, "fault": {"kind": "error", "status": 503, "code": "ServiceUnavailable", "retryAfter": 10}});
    assert_eq!(control("POST", "faults", rule).await.0, 200);
    assert_eq!(call(&emulator, "ListUsage", &[]).await.code(), "ServiceUnavailable");
    assert_eq!(call(&emulator, "ListUsage", &[]).await.code(), "none");
    let (status, error) =
        control("POST", "faults", json!({"actions": "x", "fault": {"kind": "reset"}})).await;
    assert_eq!(status, 400, "{error}");
    control("POST", "faults", json!({"fault": {"kind": "resetBefore"}})).await;
    assert_eq!(control("DELETE", "faults", json!({})).await.0, 200);
    assert_eq!(call(&emulator, "ListUsage", &[]).await.code(), "none");
    control("POST", "settings", json!({"maxCpu": 1.0, "soldOut": ["vsw-b"], "stoppingMs": 5})).await;
    assert_eq!(call(&emulator, CREATE, &group("vk-2", &[])).await.code(), "QuotaExceeded");
    let line = json!({"kind": "log", "container": "main", "line": "x"});
    assert_eq!(control("POST", &format!("groups/{id}"), line).await.0, 200);
    let wrong = json!({"kind": "exit", "container": "other", "code": 1});
    assert_eq!(control("POST", &format!("groups/{id}"), wrong).await.0, 400);
    let (_, state) = control("GET", "state", json!({})).await;
    assert_eq!(state["groups"][0]["name"], "vk-1");
    assert_eq!(state["calls"]["ListUsage"]["total"], 3);
    assert_eq!(state["bills"][0]["isOpen"], true);
    assert_eq!(control("POST", &format!("groups/{id}"), json!({"kind": "vanish"})).await.0, 200);
    assert_eq!(control("POST", &format!("groups/{id}"), json!({"kind": "vanish"})).await.0, 400);
    let (_, journal) = control("GET", "journal", json!({})).await;
    assert_eq!(journal[0]["action"], CREATE);
}
