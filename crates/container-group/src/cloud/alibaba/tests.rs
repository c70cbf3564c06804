mod credential_sources;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use rand::{SeedableRng as _, rngs::StdRng};
use serde::Deserialize;
use vk_supervisor::Clock;

use super::*;
use crate::cloud::{
    client::{
        Client, Limits,
        tests::fake_server::{FakeServer, Received, Reply},
    },
    credentials::{CachedCredentials, CredentialSource, Credentials},
    error::{Class, Error, Result, Shortage},
    request::Effect,
    sign::Scheme,
};

const NOW: &str = "2026-01-02T03:04:05Z";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Groups {
    total_count: u32,
}

/// Gives key-1, key-2, ...: temporary credentials that are always renewable.
struct Counting(AtomicUsize);

#[async_trait]
impl CredentialSource for Counting {
    async fn load(&self) -> Result<Credentials> {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Credentials::new(format!("key-{number}"), "secret").with_token("token"))
    }
}

pub(super) fn clock() -> Clock {
    Clock::new(|| NOW.parse().unwrap())
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(1)
}

fn http() -> Client {
    Client::new(Limits::default(), Some(Arc::new(rustls::RootCertStore::empty())))
}

fn api_with(server: &FakeServer, source: Arc<dyn CredentialSource>) -> Api {
    let credentials = CachedCredentials::new(source, clock(), rng());
    Api::new(http(), server.endpoint.clone(), "2018-08-08", credentials, clock(), rng())
}

fn api(server: &FakeServer) -> Api {
    api_with(server, Arc::new(Credentials::new("testid", "testsecret")))
}

fn list() -> Call {
    Call::new("DescribeContainerGroups", Effect::Repeatable).parameter("RegionId", "cn-hangzhou")
}

fn create() -> Call {
    Call::new("CreateContainerGroup", Effect::Create)
}

/// The error of this answer to a list or a create.
async fn refused(reply: impl Fn() -> Reply + Send + Sync + 'static, call: Call) -> Error {
    let server = FakeServer::start(move |_| reply()).await;
    api(&server).call::<Groups>(call).await.unwrap_err()
}

async fn class_of(status: u16, code: &'static str, call: Call) -> Class {
    refused(move || Reply::refusal(status, code, "why"), call).await.class().clone()
}

#[tokio::test]
async fn a_call_is_signed_and_its_answer_is_read() {
    let server =
        FakeServer::start(|_| Reply::json(r#"{"TotalCount": 3, "RequestId": "1", "New": []}"#)).await;
    let api = api(&server);
    for _ in 0..2 {
        assert_eq!(api.call::<Groups>(list()).await.unwrap().total_count, 3);
    }
    let [first, second] = &server.received()[..] else { panic!("two calls") };
    assert_eq!(first.line, "POST /?RegionId=cn-hangzhou");
    assert_eq!(first.header("x-acs-action"), "DescribeContainerGroups");
    assert_eq!((first.header("x-acs-version"), first.header("x-acs-date")), ("2018-08-08", NOW));
    assert!(
        first
            .header("authorization")
            .starts_with("ACS3-HMAC-SHA256 Credential=testid,SignedHeaders=accept;host;")
    );
    // Each attempt is signed anew.
    assert_ne!(first.header("x-acs-signature-nonce"), second.header("x-acs-signature-nonce"));
    assert_ne!(first.header("authorization"), second.header("authorization"));
}

#[tokio::test]
async fn the_first_signature_is_a_parameter() {
    let server = FakeServer::start(|_| Reply::json(r#"{"TotalCount": 0}"#)).await;
    api(&server).with_scheme(Scheme::Rpc).call::<Groups>(list()).await.unwrap();
    let line = &server.received()[0].line;
    for part in [
        "AccessKeyId=testid",
        "Action=DescribeContainerGroups",
        "Format=JSON",
        "&Signature=",
        "Version=2018-08-08",
    ] {
        assert!(line.contains(part), "{line}");
    }
}

#[tokio::test]
async fn what_is_too_long_for_a_url_is_sent_as_a_form() {
    let server = FakeServer::start(|_| Reply::json(r#"{"TotalCount": 0}"#)).await;
    let files = "x".repeat(80 << 10);
    for scheme in [Scheme::Acs3, Scheme::Rpc] {
        let api = api(&server).with_scheme(scheme);
        api.call::<Groups>(create().secret_parameter("Volume.1.Content", &files)).await.unwrap();
    }
    for received in server.received() {
        assert_eq!(received.body, format!("Volume.1.Content={files}"));
        assert_eq!(received.header("content-type"), "application/x-www-form-urlencoded");
        assert!(received.line.len() < 1_000);
    }
}

#[tokio::test]
async fn wrong_access_key() {
    let error = refused(
        || Reply::refusal(404, "InvalidAccessKeyId.NotFound", "Specified access key is not found."),
        list(),
    );
    let error = error.await;
    assert_eq!(*error.class(), Class::Auth, "and not that the group does not exist");
    assert_eq!(error.request_id(), Some("1A2B-3C"));
    assert_eq!(
        error.to_string(),
        "DescribeContainerGroups: Specified access key is not found; check the id of the access key, and that it is enabled; \
         the credentials are those of the configuration (InvalidAccessKeyId.NotFound, request 1A2B-3C)"
    );
}

#[tokio::test]
async fn wrong_secret_key() {
    // The gateway repeats what was signed, and so the whole request.
    let said = "Specified signature is not matched with our calculation. server string to sign is:POST\n/\nEnv=s3cr3t";
    let error = refused(move || Reply::refusal(400, "SignatureDoesNotMatch", said), create()).await;
    assert_eq!(*error.class(), Class::Auth);
    let text = error.to_string();
    assert!(text.contains("check the secret of the access key") && !text.contains("s3cr3t"), "{text}");
}

#[tokio::test]
async fn clock_off_by_an_hour_is_reported() {
    for code in ["InvalidTimeStamp.Expired", "InvalidTimeStamp.Format", "IllegalTimestamp"] {
        let body =
            format!(r#"{{"Code": "{code}", "Message": "Specified time stamp or date value is expired."}}"#);
        let date = "Date: Fri, 02 Jan 2026 02:04:05 GMT\r\n";
        let error = refused(move || Reply::Answer(400, "application/json", body.clone(), date), list()).await;
        assert_eq!(*error.class(), Class::ClockSkew);
        let text = error.to_string();
        assert!(text.contains("set the clock of this host"), "{text}");
        assert!(text.contains("says that it is Fri, 02 Jan 2026 02:04:05 GMT"), "{text}");
    }
}

#[tokio::test]
async fn expired_token() {
    let server = FakeServer::start(|received| match received.header("x-acs-accesskey-id") {
        "key-1" => Reply::refusal(400, "InvalidSecurityToken.Expired", "Specified SecurityToken is expired."),
        _ => Reply::json(r#"{"TotalCount": 1}"#),
    })
    .await;
    let renewable = Arc::new(Counting(AtomicUsize::new(0)));
    api_with(&server, renewable).call::<Groups>(create()).await.unwrap();
    assert_eq!(server.received().len(), 2, "once with the new credentials");

    let given = Credentials::new("key-1", "secret").with_token("token");
    let error = api_with(&server, Arc::new(given)).call::<Groups>(create()).await.unwrap_err();
    assert_eq!(*error.class(), Class::ExpiredToken);
    assert_eq!(server.received().len(), 3, "there are no others");
}

#[tokio::test]
async fn a_key_that_was_replaced_in_its_file_is_read_again_for_the_next_call() {
    let server = FakeServer::start(|received| match received.header("x-acs-accesskey-id") {
        "key-1" => Reply::refusal(404, "InvalidAccessKeyId.NotFound", ""),
        _ => Reply::json(r#"{"TotalCount": 1}"#),
    })
    .await;
    let api = api_with(&server, Arc::new(Counting(AtomicUsize::new(0))));
    assert_eq!(*api.call::<Groups>(list()).await.unwrap_err().class(), Class::Auth);
    api.call::<Groups>(list()).await.unwrap();
}

#[tokio::test]
async fn throttling_says_when_to_come_back() {
    for (headers, after) in [
        ("x-acs-retry-after: 1500\r\n", Some(Duration::from_millis(1_500))),
        ("Retry-After: 2\r\n", Some(Duration::from_secs(2))),
        ("", None),
    ] {
        let body =
            r#"{"Code": "Throttling.User", "Message": "Request was denied due to user flow control."}"#;
        let reply = move || Reply::Answer(400, "application/json", body.to_owned(), headers);
        let error = refused(reply, create()).await;
        assert_eq!(*error.class(), Class::Throttled { after });
    }
    assert_eq!(class_of(503, "Throttling", create()).await, Class::Throttled { after: None });
}

#[tokio::test]
async fn codes_have_classes_whatever_their_status_is() {
    let invalid = |field: &str| Class::Invalid { field: Some(field.to_owned()) };
    for (code, class) in [
        ("Account.Arrearage", Class::Auth),
        ("InvalidAccountStatus.NotEnoughBalance", Class::Auth),
        ("Forbidden.RAM", Class::Auth),
        ("CreateServiceLinkedRole.Denied", Class::Auth),
        ("QuotaExceeded", Class::Quota),
        ("OperationDenied.NoStock", Class::Capacity(Shortage::InstanceType)),
        ("InvalidResourceType.NotSupported", Class::Capacity(Shortage::InstanceType)),
        ("Zone.NotOnSale", Class::Capacity(Shortage::Zone)),
        ("IncorrectStatus", Class::Conflict),
        ("IdempotentParameterMismatch", Class::Conflict),
        ("InvalidVSwitchId.NotFound", invalid("VSwitchId")),
        ("InvalidParameter.Cpu.Memory", invalid("Cpu.Memory")),
        ("MissingParameter", Class::Invalid { field: None }),
        ("InvalidParameter.ValueNotSupported", Class::Invalid { field: None }),
        ("InternalError", Class::Ambiguous),
        ("ServiceUnavailable", Class::Ambiguous),
    ] {
        assert_eq!(class_of(400, code, create()).await, class, "{code}");
    }
    assert_eq!(class_of(404, "InvalidContainerGroupId.NotFound", list()).await, Class::NotFound);
    assert_eq!(class_of(404, "InvalidAction.NotFound", list()).await, invalid("Action"));
    assert_eq!(class_of(400, "ServiceUnavailable", list()).await, Class::Transient);
    assert_eq!(class_of(400, "Something.New", list()).await, Class::Invalid { field: None });
    assert_eq!(class_of(403, "Something.New", list()).await, Class::Auth);
    let passing =
        || Reply::refusal(400, "CorePattern.UpdateFail", "Update settings fail, please try again later.");
    assert_eq!(*refused(passing, create()).await.class(), Class::Transient);
}

#[tokio::test]
async fn an_error_inside_200() {
    assert_eq!(class_of(200, "QuotaExceeded", create()).await, Class::Quota);
    let server = FakeServer::start(|_| Reply::json(r#"{"Code": "200", "TotalCount": 1}"#)).await;
    api(&server).call::<Groups>(list()).await.unwrap();
}

#[tokio::test]
async fn a_gateway_in_trouble_leaves_a_create_ambiguous() {
    for (status, kind) in
        [(502, "text/html"), (504, "text/html"), (500, "application/json"), (408, "text/plain")]
    {
        let reply = move || Reply::Answer(status, kind, "<html>".to_owned(), "");
        assert_eq!(*refused(reply, create()).await.class(), Class::Ambiguous, "{status}");
        assert_eq!(*refused(reply, list()).await.class(), Class::Transient, "{status}");
    }
}

#[tokio::test]
async fn a_page_that_is_not_there_does_not_mean_that_the_group_is_not_there() {
    let page = || Reply::Answer(404, "text/html", "<html>".to_owned(), "");
    assert_eq!(*refused(page, list()).await.class(), Class::Transient);
    let error = refused(|| Reply::Answer(302, "text/html", String::new(), ""), list()).await;
    assert!(error.to_string().contains("status 302 and text/html, not with JSON"), "{error}");
}

#[tokio::test]
async fn an_answer_of_an_unexpected_type_leaves_a_create_ambiguous() {
    let error = refused(|| Reply::json(r#"{"TotalCount": "many"}"#), create()).await;
    assert_eq!(*error.class(), Class::Ambiguous);
    assert!(error.to_string().contains("TotalCount") && !error.to_string().contains("many"), "{error}");
}

#[tokio::test]
async fn credentials_that_cannot_be_loaded_fail_the_call_and_nothing_is_sent() {
    let server = FakeServer::start(|_| Reply::json("{}")).await;
    let options = CredentialOptions {
        mode: CredentialMode::Static,
        ..CredentialOptions::new(Environment::new(|_| None))
    };
    let chain = CredentialChain::new(options, &http(), clock(), rng());
    let error = api_with(&server, Arc::new(chain)).call::<Groups>(create()).await.unwrap_err();
    assert_eq!(*error.class(), Class::Auth, "and not ambiguous");
    assert_eq!(
        error.to_string(),
        "CreateContainerGroup: load credentials: ALIBABA_CLOUD_ACCESS_KEY_ID is not set"
    );
    assert!(server.received().is_empty());
}
