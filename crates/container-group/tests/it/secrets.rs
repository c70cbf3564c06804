//! Nothing secret gets into logs, errors or `Debug`.

use std::{io, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use rustls::RootCertStore;
use serde_json::{Value, json};
use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};
use vk_container_group::cloud::{
    CachedCredentials, Client, Credentials, Effect, Limits,
    alibaba::{Api, Call},
    sign::Scheme,
};
use vk_supervisor::Clock;

use crate::recorder::{Arrived, Recorder};

const SECRET_KEY: &str = "marked-secret-of-the-key";
const TOKEN: &str = "marked-session-token-0123456789";
const VALUE: &str = "marked value of a variable";
const FILE: &str = "marked contents of a file: \u{fc}\n{\"password\": \"marked-in-json\"}";
/// A part of every secret.
const MARK: &str = "marked";
const JSON: &str = "application/json";

/// Makes the body of an answer.
type Body = fn(&Arrived) -> String;

/// Keeps all that is logged.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Percent-encodes every byte that may need it.
fn encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn assert_clean(text: &str) {
    let text = text.to_ascii_lowercase();
    assert!(!text.contains(MARK), "{text}");
    for secret in [SECRET_KEY, TOKEN, VALUE, FILE] {
        let base64 = BASE64_STANDARD.encode(secret);
        for form in [encode(secret), encode(&encode(secret)), encode(&base64), base64] {
            let form = form.to_ascii_lowercase();
            let (first, last) = (&form[..16], &form[form.len() - 16..]);
            assert!(!text.contains(first) && !text.contains(last), "{form}: {text}");
        }
    }
}

fn create() -> Call {
    Call::new("CreateContainerGroup", Effect::Create)
        .parameter("ContainerGroupName", "vk-1")
        .secret_parameter("Container.1.EnvironmentVar.1.Value", VALUE)
        .secret_parameter("Volume.1.ConfigFileVolumeConfigFileToPath.1.Content", BASE64_STANDARD.encode(FILE))
}

/// A message that repeats the request in many forms.
fn repeated(arrived: &Arrived) -> String {
    let (token, base64) = (arrived.header("x-acs-security-token"), BASE64_STANDARD.encode(FILE));
    format!("{:?} {token} {} {base64} {}", arrived.query, encode(VALUE), encode(&encode(FILE)))
}

fn refusal(code: &str, message: &str) -> String {
    json!({"Code": code, "Message": message, "RequestId": "1"}).to_string()
}

fn api(recorder: &Recorder) -> Api {
    let clock = Clock::new(|| "2026-01-02T03:04:05Z".parse().unwrap());
    let rng = || StdRng::seed_from_u64(1);
    let key = Credentials::new("testid", SECRET_KEY).with_token(TOKEN);
    let credentials = CachedCredentials::new(Arc::new(key), clock.clone(), rng());
    let client = Client::new(Limits::default(), Some(Arc::new(RootCertStore::empty())));
    Api::new(client, recorder.endpoint.clone(), "2018-08-08", credentials, clock, rng())
}

#[tokio::test]
async fn nothing_secret_gets_into_logs_errors_or_debug() {
    let logs = Logs::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false);
    tracing::subscriber::set_global_default(subscriber.with_writer(logs.clone()).finish()).unwrap();
    // Places that were reached before would stay silent.
    tracing::callsite::rebuild_interest_cache();

    let recorder = Recorder::start().await;
    let (mut sent, mut refused) = (Vec::new(), 0);
    for scheme in [Scheme::Acs3, Scheme::Rpc] {
        let api = api(&recorder).with_scheme(scheme);
        assert_clean(&format!("{api:?} {:?}", create()));
        let answers: [(&str, &str, Body); 9] = [
            ("200 OK", JSON, |arrived| json!({"Files": repeated(arrived)}).to_string()),
            ("400 Bad Request", JSON, |arrived| refusal("InvalidParameter.Value", &repeated(arrived))),
            ("400 Bad Request", JSON, |arrived| refusal("SignatureDoesNotMatch", &repeated(arrived))),
            ("403 Forbidden", JSON, |arrived| refusal("Forbidden.RAM", &repeated(arrived))),
            ("400 Bad Request", JSON, |_| refusal("Throttling", &VALUE[..14])),
            ("400 Bad Request", JSON, |arrived| refusal("InvalidSecurityToken.Expired", &repeated(arrived))),
            ("502 Bad Gateway", "text/html", repeated),
            ("200 OK", "text/html", repeated),
            ("200 OK", JSON, |_| format!("{{\"Code\": {VALUE}")),
        ];
        for (status, kind, body) in answers {
            let (arrived, outcome) =
                tokio::join!(recorder.answer(status, kind, body), api.call::<Value>(create()));
            sent.extend(arrived.query.into_iter().chain(arrived.headers).map(|(_, value)| value));
            if let Err(error) = outcome {
                refused += 1;
                assert_clean(&format!(
                    "{error} {error:?} {}",
                    vk_provider::Error::from(error.clone()).report()
                ));
            }
        }
    }
    assert_eq!(refused, 16);
    // The test would find them: they were sent.
    assert!([TOKEN, VALUE].iter().all(|secret| sent.iter().any(|value| value == secret)), "{sent:?}");
    let logs = String::from_utf8(logs.0.lock().clone()).unwrap();
    assert!(logs.contains("called the cloud"), "{logs}");
    assert_clean(&logs);
}
