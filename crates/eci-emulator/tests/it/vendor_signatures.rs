//! The emulator's own check of signatures, against those of the vendor's signer: it accepts each of them, and none with another byte.

use std::fmt::Write as _;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Map, Value, json};
use vk_eci_emulator::EciEmulator;
use vk_testing::cloud::vendor;

use crate::caller::{encode, exchange, simulated};

const CASES: u32 = 200;
/// Of no bytes.
const SHA256_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Text of any length with characters of all kinds.
fn text(rng: &mut StdRng) -> String {
    let length = *[0, 1, 5, 40, 1500].choose(rng).unwrap();
    let letters: Vec<char> =
        "aZ09-_.~ +*%&=/?'\"<>\\:;,\t\u{e4}\u{df}\u{3b1}\u{4e2d}\u{1f600}\u{301}".chars().collect();
    (0..length).map(|_| *letters.choose(rng).unwrap()).collect()
}

/// The header of a name. The vendor's signer takes a dictionary of them, which tells those of one name apart by their case.
fn add_header(headers: &mut Map<String, Value>, name: &str, value: String) {
    let mut name = name.to_owned();
    for letter in 0..name.len() {
        if headers.contains_key(&name) {
            name[letter..=letter].make_ascii_uppercase();
        }
    }
    headers.insert(name, value.into());
}

/// A request that the vendor's signer signs. Names of parameters are those that it does not encode, and no two are the same: it takes a
/// dictionary.
fn request(emulator: &EciEmulator, rng: &mut StdRng, number: u32) -> Value {
    let mut query = Map::new();
    for at in 0..rng.random_range(0..8) {
        let name = ["RegionId", "Tag.1.Key", "x", "A~b_c-d.e"].choose(rng).unwrap();
        query.insert(
            format!("{name}{}", if at % 2 == 0 { String::new() } else { at.to_string() }),
            text(rng).into(),
        );
    }
    let mut headers = Map::new();
    for (name, value) in [
        ("host", "eci.example".to_owned()),
        ("x-acs-action", "ListUsage".to_owned()),
        ("x-acs-version", "2018-08-08".to_owned()),
        ("x-acs-date", emulator.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("x-acs-signature-nonce", format!("nonce-of-the-vendor-{number}")),
        ("x-acs-content-sha256", SHA256_OF_NOTHING.to_owned()),
    ] {
        add_header(&mut headers, name, value);
    }
    for _ in 0..rng.random_range(0..4) {
        let name = ["x-acs-a-header", "x-acs-b-header"].choose(rng).unwrap();
        let value = ["", "plain", "two words", "a,b;c=d"].choose(rng).unwrap();
        add_header(&mut headers, name, (*value).to_owned());
    }
    json!({
        "scheme": "acs3", "method": "POST", "path": "/", "query": query, "headers": headers, "body": "",
        "id": "testid", "secret": "testsecret",
    })
}

/// The code of the emulator's answer.
async fn code(emulator: &EciEmulator, request: &Value, authorization: &str) -> String {
    let query = request["query"].as_object().unwrap().iter();
    let query: Vec<String> =
        query.map(|(name, value)| format!("{}={}", encode(name), encode(value.as_str().unwrap()))).collect();
    let mut text = format!("POST /?{} HTTP/1.1\r\n", query.join("&"));
    for (name, value) in request["headers"].as_object().unwrap() {
        write!(text, "{}: {}\r\n", name.to_ascii_lowercase(), value.as_str().unwrap()).unwrap();
    }
    write!(text, "authorization: {authorization}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    exchange(emulator, &text).await.expect("an answer").code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the vendor SDKs: make test"]
async fn every_signature_of_the_vendor_is_accepted_and_none_with_another_byte() {
    let emulator = simulated().await;
    let rng = &mut StdRng::seed_from_u64(1);
    let requests: Vec<Value> = (0..CASES).map(|number| request(&emulator, rng, number)).collect();
    let lines = tokio::task::block_in_place(|| vendor::run("sign.py", &[], &requests));
    assert_eq!(lines.len(), requests.len());
    let mut with_repeated = 0;
    for (request, line) in requests.iter().zip(lines) {
        let answer: Value = serde_json::from_str(&line).unwrap();
        let authorization = answer["signature"].as_str().unwrap();
        let (rest, signature) = authorization.rsplit_once('=').unwrap();
        let at = rng.random_range(0..signature.len());
        let other = if signature.as_bytes()[at] == b'0' { "1" } else { "0" };
        let planted = format!("{rest}={}{other}{}", &signature[..at], &signature[at + 1..]);
        assert_eq!(code(&emulator, request, &planted).await, "SignatureDoesNotMatch", "{request}");
        // What is said may be refused later for what it says.
        let code = code(&emulator, request, authorization).await;
        assert!(!code.contains("Signature") && !code.contains("TimeStamp"), "{code}: {request}");
        let names = request["headers"].as_object().unwrap().keys();
        with_repeated += u32::from(names.into_iter().any(|name| name.starts_with('X')));
    }
    assert!(with_repeated > 10, "only {with_repeated} have a header twice");
}
