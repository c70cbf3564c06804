use http::Method;
use rand::{SeedableRng as _, rngs::StdRng};

use super::*;
use crate::cloud::request::{Effect, Parameter};

const HOST: &str = "eci.cn-hangzhou.aliyuncs.com";

fn attempt() -> Attempt {
    Attempt {
        time: "2026-01-02T03:04:05Z".parse().unwrap(),
        nonce: "3156853299f313e23d1673dc12e1703d".to_owned(),
    }
}

fn credentials() -> Credentials {
    Credentials::new("testid", "testsecret")
}

fn groups_of_a_node() -> Request {
    Request::new(Method::POST, "DescribeContainerGroups", Effect::Repeatable)
        .header("x-acs-action", "DescribeContainerGroups")
        .header("X-Acs-Version", "2018-08-08")
        .parameter("RegionId", "cn-hangzhou")
        .parameter("Limit", "20")
        .parameter("Tag.1.Key", "NodeName")
        .parameter("Tag.1.Value", "vk node/1")
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers().iter().find(|header| header.name == name).map(|header| header.value.as_str())
}

fn parameter(request: &Request, name: &str) -> Option<String> {
    let pairs = request.encoded_query();
    let prefix = format!("{name}=");
    pairs.split('&').find_map(|pair| pair.strip_prefix(&prefix).map(str::to_owned))
}

#[test]
fn acs3_signs_as_the_vendor_does() {
    let signed =
        "accept;host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version";
    for (request, names, signature) in [
        (
            groups_of_a_node().header("accept", "application/json"),
            signed,
            "6c4bb6c89a37743d9ff0a721970d7c49341311fc1dacc816c6086f0fa8e70994",
        ),
        (
            groups_of_a_node(),
            signed.strip_prefix("accept;").unwrap(),
            "29c53b27079e68ddb3282dead7b82a3b39088d74d6271a83111a646d28af6189",
        ),
    ] {
        let request = Scheme::Acs3.sign(&request, HOST, &credentials(), &attempt());
        let expected =
            format!("ACS3-HMAC-SHA256 Credential=testid,SignedHeaders={names},Signature={signature}");
        assert_eq!(header(&request, "authorization"), Some(expected.as_str()));
        assert_eq!(header(&request, "x-acs-date"), Some("2026-01-02T03:04:05Z"));
    }
}

#[test]
fn rpc_signs_as_the_vendor_does() {
    let request = Request::new(Method::POST, "DescribeContainerGroups", Effect::Repeatable)
        .parameter("Action", "DescribeContainerGroups")
        .parameter("Version", "2018-08-08")
        .parameter("Format", "JSON")
        .parameter("RegionId", "cn-hangzhou")
        .parameter("Tag.1.Value", "vk node/1");
    let request = Scheme::Rpc.sign(&request, HOST, &credentials(), &attempt());
    assert_eq!(parameter(&request, "Signature").unwrap(), encode_signature("9jp8wUo5i+7nJncQRRkC6MCVD8A="));
}

fn encode_signature(signature: &str) -> String {
    crate::cloud::request::encode(signature, "")
}

#[test]
fn a_session_token_is_sent_and_signed() {
    let credentials = credentials().with_token("s3cr3t-token");
    let request = Scheme::Acs3.sign(&groups_of_a_node(), HOST, &credentials, &attempt());
    let authorization = header(&request, "authorization").unwrap();
    assert!(authorization.contains(";x-acs-security-token;"), "{authorization}");
    assert_eq!(header(&request, "x-acs-security-token"), Some("s3cr3t-token"));

    let request = Scheme::Rpc.sign(&groups_of_a_node(), HOST, &credentials, &attempt());
    assert_eq!(parameter(&request, "SecurityToken").as_deref(), Some("s3cr3t-token"));
    assert!(!format!("{request:?}").contains("s3cr3t"));
}

#[test]
fn every_attempt_has_another_nonce_and_signature() {
    let mut rng = StdRng::seed_from_u64(1);
    let request = groups_of_a_node();
    let time = attempt().time;
    let mut sign = || {
        let attempt = Attempt::new(time, &mut rng);
        let request = Scheme::Acs3.sign(&request, HOST, &credentials(), &attempt);
        (attempt.nonce, header(&request, "authorization").unwrap().to_owned())
    };
    let ((first_nonce, first), (second_nonce, second)) = (sign(), sign());
    assert_eq!(first_nonce.len(), 32);
    assert_ne!(first_nonce, second_nonce);
    assert_ne!(first, second);
}

#[test]
fn signing_adds_to_the_request_and_changes_nothing_of_it() {
    let request = groups_of_a_node().body("application/json", "{}");
    let signed = Scheme::Acs3.sign(&request, HOST, &credentials(), &attempt());
    assert_eq!(signed.encoded_query(), request.encoded_query());
    assert_eq!(signed.payload(), request.payload());
    assert!(request.headers().iter().all(|header| signed.headers().contains(header)));
    // The hash of the body, which SHA-256 of `{}` is.
    let hash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    assert_eq!(header(&signed, "x-acs-content-sha256"), Some(hash));
}

#[test]
fn headers_of_one_name_are_signed_as_one_line() {
    let base = Request::new(Method::GET, "List", Effect::Repeatable);
    let sign = |request: Request| {
        let request = Scheme::Acs3.sign(&request, HOST, &credentials(), &attempt());
        header(&request, "authorization").unwrap().to_owned()
    };
    let apart = sign(base.clone().header("x-acs-a", " 2 ").header("X-Acs-A", "1"));
    let joined = sign(base.header("x-acs-a", "1,2"));
    assert_eq!(apart, joined);
}

#[test]
fn parameters_compare_by_name_first() {
    let of = |name: &str, value: &str| Parameter { name: name.to_owned(), value: value.to_owned() };
    assert!(of("a", "z") < of("b", "a") && of("a", "1") < of("a", "2"));
}
