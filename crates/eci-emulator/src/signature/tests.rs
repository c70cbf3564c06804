use jiff::SignedDuration;

use super::*;
use crate::account::AccessKey;

const NOW: &str = "2026-01-02T03:04:05Z";
const NONCE: &str = "3156853299f313e23d1673dc12e1703d";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn account() -> Account {
    let keys = [("testid".to_owned(), AccessKey::new("testsecret"))].into();
    Account { keys, ..Account::default() }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The vendor's vector, with the header `accept` signed or not.
fn acs3_request(with_accept: bool) -> HttpRequest {
    let empty = hex(digest(&SHA256, b"").as_ref());
    let (names, signature) = if with_accept {
        ("accept;", "6c4bb6c89a37743d9ff0a721970d7c49341311fc1dacc816c6086f0fa8e70994")
    } else {
        ("", "29c53b27079e68ddb3282dead7b82a3b39088d74d6271a83111a646d28af6189")
    };
    let names = format!(
        "{names}host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version"
    );
    let authorization = format!("{ALGORITHM} Credential=testid,SignedHeaders={names},Signature={signature}");
    HttpRequest {
        method: "POST".to_owned(),
        path: "/".to_owned(),
        query: owned(&[
            ("Tag.1.Value", "vk node/1"),
            ("RegionId", "cn-hangzhou"),
            ("Limit", "20"),
            ("Tag.1.Key", "NodeName"),
        ]),
        headers: owned(&[
            ("host", "eci.cn-hangzhou.aliyuncs.com"),
            ("accept", "application/json"),
            ("x-acs-action", "DescribeContainerGroups"),
            ("x-acs-version", "2018-08-08"),
            ("x-acs-date", NOW),
            ("x-acs-signature-nonce", NONCE),
            ("x-acs-content-sha256", &empty),
            ("authorization", &authorization),
        ]),
        ..HttpRequest::default()
    }
}

fn rpc_request() -> HttpRequest {
    HttpRequest {
        method: "POST".to_owned(),
        path: "/".to_owned(),
        query: owned(&[
            ("Action", "DescribeContainerGroups"),
            ("Version", "2018-08-08"),
            ("Format", "JSON"),
            ("AccessKeyId", "testid"),
            ("SignatureMethod", "HMAC-SHA1"),
            ("SignatureVersion", "1.0"),
            ("SignatureNonce", NONCE),
            ("Timestamp", NOW),
            ("RegionId", "cn-hangzhou"),
            ("Tag.1.Value", "vk node/1"),
            ("Signature", "9jp8wUo5i+7nJncQRRkC6MCVD8A="),
        ]),
        ..HttpRequest::default()
    }
}

fn code(request: &HttpRequest, account: &mut Account, now: Timestamp) -> String {
    verify(request, account, now).unwrap_err().code
}

fn set(request: &mut HttpRequest, name: &str, value: &str) {
    let header = request.headers.iter_mut().find(|(other, _)| other == name).unwrap();
    value.clone_into(&mut header.1);
}

#[test]
fn the_vectors_of_both_schemes_are_accepted() {
    for request in [acs3_request(true), acs3_request(false), rpc_request()] {
        verify(&request, &mut account(), now()).unwrap();
    }
}

#[test]
fn a_signature_that_is_off_by_one_byte_is_refused() {
    let mut request = acs3_request(true);
    let authorization = request.header("authorization").unwrap().replace("e70994", "e70995");
    set(&mut request, "authorization", &authorization);
    assert_eq!(code(&request, &mut account(), now()), "SignatureDoesNotMatch");
    let mut request = rpc_request();
    request.query.last_mut().unwrap().1 = "9jp8wUo5i+7nJncQRRkC6MCVD8B=".to_owned();
    assert_eq!(code(&request, &mut account(), now()), "SignatureDoesNotMatch");
}

#[test]
fn what_is_changed_after_signing_is_noticed() {
    let mut request = acs3_request(true);
    request.query[1].1 = "cn-beijing".to_owned();
    assert_eq!(code(&request, &mut account(), now()), "SignatureDoesNotMatch");
    let mut request = acs3_request(true);
    set(&mut request, "x-acs-action", "DeleteContainerGroup");
    assert_eq!(code(&request, &mut account(), now()), "SignatureDoesNotMatch");
    let mut request = acs3_request(true);
    request.body = b"x".to_vec();
    assert_eq!(code(&request, &mut account(), now()), "IncompleteSignature");
    let mut request = acs3_request(true);
    request.headers.push(("x-acs-security-token".to_owned(), "smuggled".to_owned()));
    assert_eq!(code(&request, &mut account(), now()), "IncompleteSignature");
}

#[test]
fn a_nonce_is_used_once() {
    let mut account = account();
    verify(&acs3_request(true), &mut account, now()).unwrap();
    assert_eq!(code(&acs3_request(true), &mut account, now()), "SignatureNonceUsed");
    assert_eq!(code(&rpc_request(), &mut account, now()), "SignatureNonceUsed");
}

#[test]
fn dates_that_are_more_than_fifteen_minutes_off_are_refused() {
    for seconds in [-901, 901] {
        let other = now() + SignedDuration::from_secs(seconds);
        assert_eq!(code(&acs3_request(true), &mut account(), other), "InvalidTimeStamp.Expired");
        assert_eq!(code(&rpc_request(), &mut account(), other), "InvalidTimeStamp.Expired");
    }
    verify(&rpc_request(), &mut account(), now() + SignedDuration::from_secs(899)).unwrap();
}

#[test]
fn keys_must_exist_and_be_active() {
    let mut none = Account::default();
    assert_eq!(code(&acs3_request(true), &mut none, now()), "InvalidAccessKeyId.NotFound");
    let disabled = [("testid".to_owned(), AccessKey::new("testsecret").disabled())].into();
    let mut account = Account { keys: disabled, ..Account::default() };
    assert_eq!(code(&acs3_request(true), &mut account, now()), "InvalidAccessKeyId.Inactive");
    let other = [("testid".to_owned(), AccessKey::new("other"))].into();
    let mut account = Account { keys: other, ..Account::default() };
    assert_eq!(code(&rpc_request(), &mut account, now()), "SignatureDoesNotMatch");
    let unsigned = HttpRequest { method: "POST".to_owned(), ..HttpRequest::default() };
    assert_eq!(code(&unsigned, &mut account, now()), "MissingAccessKeyId");
}

#[test]
fn temporary_credentials_need_their_token_and_expire() {
    let key = |expires| AccessKey::new("testsecret").with_token("token", expires);
    let with = |key| Account { keys: [("testid".to_owned(), key)].into(), ..Account::default() };
    let later = now() + SignedDuration::from_secs(60);
    assert_eq!(code(&rpc_request(), &mut with(key(later)), now()), "MissingSecurityToken");
    let mut request = rpc_request();
    request.query.push(("SecurityToken".to_owned(), "another".to_owned()));
    assert_eq!(code(&request, &mut with(key(later)), now()), "InvalidSecurityToken.MismatchWithAccessKey");
    request.query.last_mut().unwrap().1 = "token".to_owned();
    assert_eq!(code(&request, &mut with(key(now())), now()), "InvalidSecurityToken.Expired");
}
