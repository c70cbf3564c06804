//! The emulator of Alibaba Cloud ECI, and what the vendor's SDK says about it.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use vk_testing::cloud::eci::{EciEmulator, Fault, Options, Rule};
//!
//! let emulator = EciEmulator::start(Options::new()).await?;
//! emulator.add_fault(Rule::once("CreateContainerGroup", Fault::ResetAfter));
//! // ... the provider calls emulator.endpoint() with the key testid, testsecret ...
//! vk_testing::cloud::eci::judge(&emulator);
//! # Ok(()) }
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
pub use vk_eci_emulator::*;

use super::vendor;

/// Headers with another value in every request, or from every client. That they are there is compared, and not what they say.
const OWN_VALUES: [&str; 5] = ["authorization", "host", "user-agent", "x-acs-date", "x-acs-signature-nonce"];
/// Headers of the connection, which belong to no API.
const OF_CONNECTION: [&str; 5] = ["accept-encoding", "connection", "content-length", "content-type", "te"];
/// Headers in which the SDK speaks of itself: where it has found the credentials.
const OF_SDK: [&str; 1] = ["x-acs-credentials-provider"];

/// Shows all that was said to the emulator and by it to the vendor's models. Panics with the paths of what they do not know, and
/// with what to install if the SDK is missing.
pub fn judge(emulator: &EciEmulator) {
    let findings = vendor::judge("eci", &emulator.journal());
    assert!(findings.is_empty(), "the vendor's models do not agree:\n{}", findings.join("\n"));
}

/// The requests that the vendor's SDK sends for these parameters: it gets each of them as a model and sends it to a recorder.
pub fn vendor_requests(requests: &[(&str, &BTreeMap<String, String>)]) -> Vec<Result<SentRequest, String>> {
    let lines: Vec<Value> = requests
        .iter()
        .map(|(action, parameters)| json!({"action": action, "parameters": parameters}))
        .collect();
    let answers = vendor::run("golden.py", &["eci"], &lines);
    assert_eq!(answers.len(), requests.len(), "an answer for each request");
    let map = |value: &Value| -> BTreeMap<String, String> {
        let pairs = value.as_object().into_iter().flatten();
        pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    };
    answers
        .iter()
        .map(|line| {
            let answer: Value = serde_json::from_str(line).expect("golden.py writes JSON");
            if answer["lost"].is_null() {
                return Ok(SentRequest {
                    parameters: map(&answer["query"]),
                    headers: map(&answer["headers"]),
                });
            }
            Err(answer["lost"].to_string())
        })
        .collect()
}

/// What is different between our request and the vendor's, one line for each parameter or header.
pub fn differences(ours: &SentRequest, vendors: &SentRequest) -> Vec<String> {
    let mut found = Vec::new();
    for name in names(&ours.parameters, &vendors.parameters) {
        let (own, other) = (ours.parameters.get(name), vendors.parameters.get(name));
        if !is_same(own, other) {
            found.push(format!("parameter {name}: ours {own:?}, the vendor's {other:?}"));
        }
    }
    for name in names(&ours.headers, &vendors.headers) {
        if OF_CONNECTION.contains(&name) || OF_SDK.contains(&name) {
            continue;
        }
        let (own, other) = (ours.headers.get(name), vendors.headers.get(name));
        let is_equal =
            if OWN_VALUES.contains(&name) { own.is_some() == other.is_some() } else { own == other };
        if !is_equal {
            found.push(format!("header {name}: ours {own:?}, the vendor's {other:?}"));
        }
    }
    found
}

fn names<'a>(one: &'a BTreeMap<String, String>, other: &'a BTreeMap<String, String>) -> BTreeSet<&'a str> {
    one.keys().chain(other.keys()).map(String::as_str).collect()
}

/// Numbers and booleans can be spelled in several ways.
fn is_same(one: Option<&String>, other: Option<&String>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one == other };
    let is_boolean = |text: &str| text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false");
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(left), Ok(right)) if is_number(one) && is_number(other) => left.total_cmp(&right).is_eq(),
        _ => one == other || is_boolean(one) && one.eq_ignore_ascii_case(other),
    }
}
