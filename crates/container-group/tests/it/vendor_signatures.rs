//! Signatures on the wire, compared with those of the vendor's own signer in `dev/vendor-sdks/sign.py`.
//!
//! A server records what arrives. The vendor's signer signs what the record says, so that a request that is sent in another way
//! than it was signed is noticed, too.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use http::Method;
use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    test_runner::{Config, TestRunner},
};
use rand::{SeedableRng as _, rngs::StdRng};
use rustls::RootCertStore;
use serde_json::{Map, Value, json};
use vk_container_group::cloud::{
    Client, Credentials, Effect, Limits, Request,
    sign::{Attempt, Scheme},
};

use crate::recorder::{Arrived, Recorder, pairs};

const TIME: &str = "2026-01-02T03:04:05Z";
const CASES: u32 = 200;

/// The vendor's signer: one process for all requests, because it takes seconds to load.
struct Signer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Signer {
    fn start() -> Self {
        let interpreter = std::env::var("VK_VENDOR_SDKS").expect(
            "VK_VENDOR_SDKS names no Python with the SDKs of cloud vendors: use `make test`, or set it to what \
             dev/vendor-sdks/build prints (it needs Python 3.10 with venv, and once a package index)",
        );
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/vendor-sdks/sign.py");
        let mut process = Command::new(interpreter)
            .arg(script)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the interpreter of VK_VENDOR_SDKS runs");
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, input, output: BufReader::new(output) }
    }

    fn sign(&mut self, request: &Value) -> String {
        writeln!(self.input, "{request}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).expect("sign.py answers: see its error above");
        answer["signature"].as_str().unwrap().to_owned()
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        // It ends with its input, unless it is busy.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The headers that the signature names. Python's dictionaries tell those of one name apart by their case.
fn signed_headers(arrived: &Arrived) -> Map<String, Value> {
    let (_, names) = arrived.header("authorization").split_once("SignedHeaders=").unwrap();
    let names: Vec<&str> = names.split(',').next().unwrap().split(';').collect();
    let mut headers = Map::new();
    for (name, value) in arrived.headers.iter().filter(|(name, _)| names.contains(&name.as_str())) {
        let mut name = name.clone();
        for letter in 0..name.len() {
            if headers.contains_key(&name) {
                name[letter..=letter].make_ascii_uppercase();
            }
        }
        headers.insert(name, value.clone().into());
    }
    headers
}

fn object(pairs: &[(String, String)]) -> Value {
    let object: Map<_, _> = pairs.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    assert_eq!(object.len(), pairs.len(), "names are unique");
    Value::Object(object)
}

/// A request and the secret that signs it.
#[derive(Clone, Debug)]
struct Case {
    path: String,
    parameters: BTreeMap<String, String>,
    headers: Vec<(String, String)>,
    body: Option<String>,
    is_form: bool,
    secret: String,
    token: Option<String>,
    /// Of the nonce.
    seed: u64,
}

impl Case {
    /// Sends it, signed, and records it.
    async fn send(&self, scheme: Scheme) -> Arrived {
        let recorder = Recorder::start().await;
        let endpoint = &recorder.endpoint;
        let mut request = Request::new(Method::POST, "Case", Effect::Repeatable).path(&self.path);
        for (name, value) in &self.parameters {
            request = request.parameter(name, value);
        }
        request = match &self.body {
            _ if self.is_form => request.into_form(),
            Some(body) => request.body("text/plain", body.clone()),
            None => request,
        };
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut credentials = Credentials::new("testid", &self.secret);
        if let Some(token) = &self.token {
            credentials = credentials.with_token(token);
        }
        let attempt = Attempt::new(TIME.parse().unwrap(), &mut StdRng::seed_from_u64(self.seed));
        let signed = scheme.sign(&request, &endpoint.host_header(), &credentials, &attempt);
        let client = Client::new(Limits::default(), Some(Arc::new(RootCertStore::empty())));
        let (arrived, answer) = tokio::join!(
            recorder.answer("200 OK", "text/plain", |_| String::new()),
            client.send(endpoint, &signed)
        );
        answer.unwrap();
        arrived
    }
}

/// Text with characters of all kinds, also empty or long.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => any::<String>(),
        2 => "[ -~]{0,40}",
        1 => Just(String::new()),
        1 => "[a-z+/=%&~*' ]{500,2000}",
    ]
}

/// `names` are those of parameters: the vendor's ACS3 signer encodes only values, so it can judge only names that need no encoding.
fn case(names: impl Strategy<Value = String>) -> impl Strategy<Value = Case> {
    let path = vec(any::<String>().prop_map(|part| part.replace('/', "")), 0..40)
        .prop_map(|parts| format!("/{}", parts.join("/")));
    // Few names, so that some repeat.
    let headers = vec(("(x-acs-)?[a-c]-header", "[ -~\t]{0,30}"), 0..6);
    let body = proptest::option::of(text());
    let token = proptest::option::of("[!-~]{1,60}");
    (path, btree_map(names, text(), 0..12), headers, body, any::<bool>(), text(), token, any::<u64>())
        .prop_map(|(path, parameters, headers, body, is_form, secret, token, seed)| Case {
            path,
            parameters,
            headers,
            body,
            is_form,
            secret,
            token,
            seed,
        })
}

fn run(cases: impl Strategy<Value = Case>, check: impl Fn(&mut Signer, &Case)) {
    let signer = RefCell::new(Signer::start());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&cases, |case| {
        check(&mut signer.borrow_mut(), &case);
        Ok(())
    });
    outcome.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
#[ignore = "needs the vendor SDKs: make test"]
fn acs3_signatures_are_those_of_the_vendors_signer() {
    let runtime = runtime();
    run(case("[A-Za-z0-9._~-]{1,20}"), |signer, case| {
        let arrived = runtime.block_on(case.send(Scheme::Acs3));
        let sent: Vec<_> = case.parameters.clone().into_iter().collect();
        assert_eq!(if case.is_form { pairs(&arrived.body) } else { arrived.query.clone() }, sent);
        assert_eq!(arrived.path, case.path);
        let expected = signer.sign(&json!({
            "scheme": "acs3",
            "method": arrived.method,
            "path": arrived.path,
            "query": object(&arrived.query),
            "headers": signed_headers(&arrived),
            "body": arrived.body,
            "id": "testid",
            "secret": case.secret,
        }));
        assert_eq!(arrived.header("authorization"), expected);
    });
}

#[test]
#[ignore = "needs the vendor SDKs: make test"]
fn rpc_signatures_are_those_of_the_vendors_signer() {
    let runtime = runtime();
    run(case(text().prop_filter("a name", |name| !name.is_empty())), |signer, case| {
        let arrived = runtime.block_on(case.send(Scheme::Rpc));
        let form = if case.is_form { pairs(&arrived.body) } else { Vec::new() };
        let (signature, mut signed): (Vec<_>, Vec<_>) =
            arrived.query.iter().cloned().partition(|(name, _)| name == "Signature");
        signed.extend(form);
        let expected = signer.sign(&json!({
            "scheme": "rpc",
            "method": arrived.method,
            "query": object(&signed),
            "secret": case.secret,
        }));
        assert_eq!(signature, [("Signature".to_owned(), expected)]);
        // Five common parameters, and the token.
        assert_eq!(signed.len(), case.parameters.len() + 5 + usize::from(case.token.is_some()));
    });
}
