//! A client that signs as the vendor's first scheme says.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use aws_lc_rs::hmac;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};
use vk_eci_emulator::{Containers, EciEmulator, Options, Timing};

static NONCE: AtomicU64 = AtomicU64::new(0);

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["Code"].as_str().unwrap_or("none").to_owned()
    }
}

/// Percent-encoded.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").unwrap();
        }
    }
    encoded
}

/// The parameters of a call, signed.
pub(crate) fn signed(emulator: &EciEmulator, action: &str, parameters: &[(&str, &str)]) -> String {
    let nonce = format!("nonce-{}", NONCE.fetch_add(1, Ordering::Relaxed));
    let now = emulator.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut all: Vec<(&str, &str)> = vec![
        ("Action", action),
        ("Version", "2018-08-08"),
        ("Format", "JSON"),
        ("AccessKeyId", "testid"),
        ("SignatureMethod", "HMAC-SHA1"),
        ("SignatureVersion", "1.0"),
        ("SignatureNonce", &nonce),
        ("Timestamp", &now),
    ];
    all.extend(parameters);
    all.sort_unstable();
    let pairs: Vec<String> =
        all.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    let pairs = pairs.join("&");
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"testsecret&");
    let text = format!("POST&%2F&{}", encode(&pairs));
    let signature = BASE64_STANDARD.encode(hmac::sign(&key, text.as_bytes()));
    format!("{pairs}&Signature={}", encode(&signature))
}

/// Sends bytes, and reads what comes until the connection is closed.
pub(crate) async fn exchange(emulator: &EciEmulator, request: &str) -> Option<Answer> {
    let address = emulator.endpoint();
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// Calls with the parameters in a form. `None` if nothing came.
pub(crate) async fn try_call(
    emulator: &EciEmulator,
    action: &str,
    parameters: &[(&str, &str)],
) -> Option<Answer> {
    let form = signed(emulator, action, parameters);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: eci\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{form}",
        form.len()
    );
    exchange(emulator, &request).await
}

/// Calls, and gets an answer.
pub(crate) async fn call(emulator: &EciEmulator, action: &str, parameters: &[(&str, &str)]) -> Answer {
    let mut all = vec![("RegionId", "cn-hangzhou")];
    all.extend(parameters);
    try_call(emulator, action, &all).await.expect("an answer")
}

/// The parameters of a small group, and more.
pub(crate) fn group<'a>(name: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![
        ("ContainerGroupName", name),
        ("VSwitchId", "vsw-a"),
        ("SecurityGroupId", "sg-1"),
        ("Container.1.Name", "main"),
        ("Container.1.Image", "busybox:1"),
    ];
    all.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
    all.extend(more);
    all
}

pub(crate) async fn create(emulator: &EciEmulator, name: &str, more: &[(&str, &str)]) -> String {
    let answer = call(emulator, "CreateContainerGroup", &group(name, more)).await;
    answer.json()["ContainerGroupId"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// The group as DescribeContainerGroups shows it.
pub(crate) async fn describe(emulator: &EciEmulator, id: &str) -> Value {
    let ids = format!("[\"{id}\"]");
    call(emulator, "DescribeContainerGroups", &[("ContainerGroupIds", &ids)]).await.json()["ContainerGroups"]
        [0]
    .clone()
}

/// Waits until the group is as wanted.
pub(crate) async fn until(emulator: &EciEmulator, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let group = describe(emulator, id).await;
        if wanted(&group) {
            return group;
        }
        assert!(Instant::now() < deadline, "not as wanted: {group:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An emulator on which everything happens at once.
pub(crate) async fn start(containers: Containers) -> EciEmulator {
    let mut options = Options { containers, limits_rates: false, ..Options::new() };
    options.settings.timing = Timing::instant();
    EciEmulator::start(options).await.unwrap()
}

pub(crate) async fn simulated() -> EciEmulator {
    start(Containers::Simulated).await
}
