//! Nothing secret is in what the provider shows or logs. Secrets have a mark, which is looked for as it is and in base64.

#![expect(clippy::disallowed_methods, reason = "the tasks of a test end with its runtime")]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{File as LogFile, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Once},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Secret, Service},
    node::v1::RuntimeClass,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, sync::watch};
use tracing_subscriber::filter::LevelFilter;
use vk_container_group::conformance::reference;
use vk_provider::{
    Changes, Error, PodBundle, Provider, Resolver, Result,
    ability::{ExecOptions, LogOptions, Started},
    error::Kind,
    resolve::{
        Claim, CommandLine, ContainerInputs, Facts, File, FileSet, NodeFacts, Origin, PullCredentials,
        Reference, RegistryLogin, Token, TokenLifetime, TokenRequest, Variable,
    },
};
use vk_testing::{
    cloud::{
        eci::{AccessKey, EciEmulator, Fault, Rule},
        vendor,
    },
    conformance::{LOGIN, PULL_SECRET, Subject as _},
};

use super::{context, provider_suite::EmulatedAccount};

/// The file to which the tests of this binary write all that is logged, and all that the emulator's journal has.
const TRACE: &str = "VK_ECI_TRACE";
/// The file to which the tests of this binary write what the emulators' journals have.
const JOURNAL: &str = "VK_ECI_JOURNAL";
/// How many lines are searched.
const LINES: &str = "VK_SECRET_LINES";
/// A part of every secret of these tests.
const MARK: &str = "nMarkedSecretZ9x7qW3vT";
/// The secret of the access key.
pub(super) const SECRET_KEY: &str = "nMarkedSecretZ9x7qW3vT-key";
/// What the suites call secret.
const SUITE: [&str; 3] = [LOGIN.2, PULL_SECRET.2, "conformance-token-"];

fn secret(what: &str) -> String {
    format!("{MARK}-{what}")
}

/// What a text looks like in base64 wherever it begins: the letters that depend on nothing else, for each of three alignments.
fn base64_forms(text: &str) -> Vec<String> {
    let alignments = 0..3;
    let form = |skipped: usize| {
        let encoded = BASE64_STANDARD.encode([&vec![b' '; skipped], text.as_bytes()].concat());
        let bits = 8 * skipped..8 * (skipped + text.len());
        encoded[bits.start.div_ceil(6)..bits.end / 6].to_owned()
    };
    alignments.map(form).collect()
}

/// All that is looked for: marks, in base64, and twice in base64, as a login is in a Docker configuration in a Secret.
fn forms() -> BTreeSet<String> {
    let marks = std::iter::once(MARK).chain(SUITE).map(str::to_owned);
    let mut all = BTreeSet::new();
    for mark in marks {
        let once = base64_forms(&mark);
        all.extend(once.iter().flat_map(|form| base64_forms(form)));
        all.extend(once);
        all.insert(mark);
    }
    all
}

/// The forms of secrets that a text has.
fn found<'a>(forms: &'a BTreeSet<String>, text: &str) -> Vec<&'a String> {
    forms.iter().filter(|form| text.contains(form.as_str())).collect()
}

/// Writes all that is logged to the file that the environment names.
pub(super) fn trace_if_asked() {
    static ONCE: Once = Once::new();
    let Some(path) = std::env::var_os(TRACE) else { return };
    ONCE.call_once(|| {
        let file = appended(Path::new(&path));
        let logs = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false);
        tracing::subscriber::set_global_default(logs.with_writer(std::sync::Mutex::new(file)).finish())
            .unwrap();
        // Places that were reached before would stay silent.
        tracing::callsite::rebuild_interest_cache();
    });
}

/// Writes the journal of an emulator to the files that the environment names.
pub(super) fn keep_journal_if_asked(emulator: &EciEmulator) {
    for path in [TRACE, JOURNAL].into_iter().filter_map(std::env::var_os) {
        let mut file = appended(Path::new(&path));
        for entry in emulator.journal() {
            // At once, because other tests write to the same file.
            file.write_all(format!("{entry}\n").as_bytes()).unwrap();
        }
    }
}

fn appended(path: &Path) -> LogFile {
    OpenOptions::new().create(true).append(true).open(path).unwrap()
}

/// Resolves everything to marked secrets. Files change when the number does.
struct MarkedResolver(watch::Sender<u32>);

#[async_trait]
impl Resolver for MarkedResolver {
    async fn container(&self, _name: &str, _facts: &Facts) -> Result<ContainerInputs> {
        let env = vec![
            Variable::new("PASSWORD", secret("variable"), Origin::Secret),
            Variable::new("PLAIN", "plain", Origin::Literal),
        ];
        let words = vec!["--password".to_owned(), secret("argument")];
        let args = CommandLine { words, origin: Origin::Secret, deferred: None };
        Ok(ContainerInputs { env, command: None, args: Some(args) })
    }

    fn volume(&self, name: &str, _tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        let mut numbers = self.0.subscribe();
        numbers.mark_changed();
        let name = name.to_owned();
        stream::unfold(numbers, move |mut numbers| {
            let name = name.clone();
            async move {
                numbers.changed().await.ok()?;
                let number = *numbers.borrow_and_update();
                let content =
                    format!("{}{}", "x".repeat(number as usize % 3), secret(&format!("{name}-{number}")));
                let files = [(name, File::new(content, 0o600, Origin::Secret))].into();
                Some((Ok(FileSet { files, expires: None }), numbers))
            }
        })
        .boxed()
    }

    async fn config_map(&self, _name: &str) -> Result<Arc<ConfigMap>> {
        Err(Error::unsupported("there is none"))
    }

    async fn secret(&self, _name: &str) -> Result<Arc<Secret>> {
        Err(Error::unsupported("there is none"))
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        Ok(Vec::new())
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        Err(Error::unsupported("there is none"))
    }

    async fn pull_credentials(&self, image: &str) -> Result<Vec<PullCredentials>> {
        let registry = image.split('/').next().unwrap_or_default();
        let token = RegistryLogin::IdentityToken(secret("identity-token").into());
        Ok(vec![
            PullCredentials::basic(registry, "user", secret("pull-password")),
            PullCredentials { registry: registry.to_owned(), login: token },
        ])
    }

    async fn claim(&self, _name: &str) -> Result<Claim> {
        Err(Error::unsupported("there is none"))
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        Ok(None)
    }

    fn node(&self) -> NodeFacts {
        NodeFacts::default()
    }

    async fn appeared(&self, _reference: &Reference) {}
}

/// A pod that refers to secrets everywhere.
fn pod(number: u32) -> Pod {
    let pod = json!({
        "metadata": {
            "name": format!("web-{number}"), "namespace": "shop", "uid": format!("00000000-0000-4000-9000-{number:012}"),
            "creationTimestamp": "2027-01-15T08:00:00Z",
        },
        "spec": {
            "containers": [{
                "name": "main", "image": format!("registry.example/web:{number}"),
                "command": ["sh", "-c", "echo up; wait"],
                "env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
                "volumeMounts": [{"name": "secret", "mountPath": "/secret"}, {"name": "token", "mountPath": "/token"}],
            }],
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [
                {"name": "secret", "secret": {"secretName": "db"}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "vault"}}]}},
            ],
        },
    });
    serde_json::from_value(pod).unwrap()
}

/// Every way in which a call can fail.
fn faults() -> Vec<Fault> {
    let error = |status, code: &str| Fault::Error { status, code: code.to_owned(), retry_after: None };
    vec![
        error(400, "InvalidParameter.Value"),
        error(403, "Forbidden.RAM"),
        error(400, "SignatureDoesNotMatch"),
        error(503, "ServiceUnavailable"),
        error(400, "QuotaExceeded"),
        Fault::ErrorAfter { status: 500, code: "InternalError".to_owned() },
        Fault::ErrorInside200 { code: "InvalidParameter".to_owned() },
        Fault::ResetBefore,
        Fault::ResetAfter,
        Fault::Truncated,
        Fault::Html { status: 502 },
        Fault::UnknownFields,
        Fault::UnknownStates,
        Fault::TextAsNumbers,
    ]
}

/// All that a node has shown, with what was refused.
struct Shown {
    provider: Arc<dyn Provider>,
    resolver: Arc<MarkedResolver>,
    said: Arc<Mutex<String>>,
    refused: u32,
}

impl Shown {
    fn add(&self, what: &impl std::fmt::Debug) {
        writeln!(self.said.lock(), "{what:?}").unwrap();
    }

    fn note<T: std::fmt::Debug>(&mut self, outcome: &Result<T>) {
        self.add(outcome);
        if let Err(error) = outcome {
            self.refused += 1;
            writeln!(self.said.lock(), "{error} {}", error.report()).unwrap();
        }
    }

    fn bundle(&self, pod: &Pod) -> PodBundle {
        PodBundle { pod: Arc::new(pod.clone()), resolver: Arc::<MarkedResolver>::clone(&self.resolver) }
    }

    /// Creates a pod, also if it takes several attempts. Says whether it runs.
    async fn create(&mut self, pod: &Pod) -> bool {
        for _ in 0..20 {
            let bundle = self.bundle(pod);
            let outcome = self.provider.create_pod(bundle).await;
            self.note(&outcome);
            match outcome.map_err(|error| error.kind().clone()) {
                Ok(()) => return true,
                Err(Kind::Invalid | Kind::Unsupported) => return false,
                Err(_) => tokio::time::sleep(Duration::from_secs(20)).await,
            }
        }
        false
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_secret_is_in_what_a_node_shows() {
    let account = EmulatedAccount::simulated();
    let emulator = account.emulator();
    let provider = account.open(context()).await.unwrap();
    let resolver = Arc::new(MarkedResolver(watch::Sender::new(0)));
    let mut shown = Shown { provider, resolver, said: Arc::default(), refused: 0 };
    let Changes::Push(mut changes) = shown.provider.changes() else { panic!("the engine pushes changes") };
    let said = Arc::clone(&shown.said);
    let reading = tokio::spawn(async move {
        while let Some(change) = changes.next().await {
            writeln!(said.lock(), "{change:?}").unwrap();
        }
    });
    let mut sent = Vec::new();
    for (number, fault) in (1..).zip(faults()) {
        let pod = pod(number);
        let container = reference(&pod).container("main");
        // A node that is well, and then every call once with this fault.
        let runs = shown.create(&pod).await;
        assert!(runs, "{}", shown.said.lock());
        sent.extend(emulator.last_request("CreateContainerGroup"));
        tokio::time::sleep(Duration::from_secs(10)).await;
        for action in [
            "CreateContainerGroup",
            "UpdateContainerGroup",
            "DescribeContainerGroups",
            "DescribeContainerGroupStatus",
        ] {
            emulator.add_fault(Rule::once(action, fault.clone()));
        }
        shown.resolver.0.send_replace(number);
        let mut other = self::pod(100 + number);
        shown.create(&other).await;
        let image = Some("registry.example/newer:1".to_owned());
        other.spec.as_mut().unwrap().containers[0].image = image;
        let updated = shown.provider.update_pod(shown.bundle(&other)).await;
        shown.note(&updated);
        for action in ["ExecContainerCommand", "DescribeContainerLog", "DeleteContainerGroup"] {
            emulator.add_fault(Rule::once(action, fault.clone()));
        }
        for command in [vec!["echo".to_owned(), secret("command")], vec![secret("command").repeat(20)]] {
            for _ in 0..2 {
                let options = ExecOptions { stdout: true, stderr: true, ..ExecOptions::default() };
                let started = shown.provider.exec().unwrap().start(&container, &command, &options).await;
                shown.note(&started);
                if let Ok(Started::Session(mut session)) = started {
                    let mut output = Vec::new();
                    if let Some(stdout) = &mut session.stdout {
                        let _ = stdout.read_to_end(&mut output).await;
                    }
                    shown.note(&session.exit.await);
                }
            }
        }
        let opened = shown.provider.logs().unwrap().open(&container, &LogOptions::default()).await;
        shown.note(&opened.map(drop));
        let listed = shown.provider.pods().await;
        shown.note(&listed);
        shown.note(&shown.provider.pod_status(&reference(&pod)).await);
        for pod in [&pod, &other] {
            let deleted = shown.provider.delete_pod(&reference(pod), None, Duration::from_secs(1)).await;
            shown.note(&deleted);
        }
        emulator.clear_faults();
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    // Another secret of the access key: the service repeats what it has signed.
    emulator.set_key("testid", AccessKey::new("another"));
    shown.create(&pod(1000)).await;
    shown.note(&shown.provider.ping().await);
    shown.add(&shown.provider.metrics());
    reading.abort();
    let journal: String = emulator.journal().iter().map(Value::to_string).collect();
    let (forms, said) = (forms(), shown.said.lock().clone());
    assert_eq!(found(&forms, &said), Vec::<&String>::new(), "{said}");
    assert_eq!(found(&forms, &journal), Vec::<&String>::new());
    assert!(shown.refused > 20, "{} refused: {said}", shown.refused);
    for what in ["Annotations", "FilesNotUpdated", "cloud_calls"] {
        assert!(said.contains(what), "{what} was not seen: {said}");
    }
    // What is looked for was sent.
    let sent: String = sent.iter().flat_map(|request| request.parameters.values()).cloned().collect();
    let (plain, encoded) = (secret("variable"), base64_forms(MARK));
    assert!(sent.contains(&plain) && encoded.iter().any(|form| sent.contains(form)), "{sent}");
    for what in ["pull-password", "argument"] {
        assert!(sent.contains(&secret(what)), "{what} was not sent: {sent}");
    }
}

#[test]
fn a_secret_is_found_wherever_it_begins_in_base64() {
    let forms = forms();
    for before in ["", "x", "xy", "xyz"] {
        let text = format!("{before}{}", secret("it"));
        let once = BASE64_STANDARD.encode(&text);
        let twice = BASE64_STANDARD.encode(format!("{{\"auth\":\"{before}{once}\"}}"));
        for shown in [&text, &once, &twice] {
            assert!(!found(&forms, &format!("a line: {shown} ")).is_empty(), "{shown}");
        }
    }
    assert!(found(&forms, "a line without a secret").is_empty());
}

/// Runs tests of this binary, with all that they log in this file.
fn run_traced(path: &Path, filters: &[&str]) {
    let output = appended(&path.with_extension("output"));
    let status = Command::new(std::env::current_exe().unwrap())
        .args(filters)
        .args([
            "--test-threads=6",
            "--nocapture",
            "--include-ignored",
            "--skip",
            "secrets::nothing_secret_is_in_the_trace",
            "--skip",
            "the_vendors_models",
        ])
        .env(TRACE, path)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    let output = std::fs::read_to_string(path.with_extension("output")).unwrap();
    let tail: Vec<&str> = output.lines().rev().take(40).collect();
    assert!(status.success(), "{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
}

/// The number of lines of a file, and those that have something secret.
fn search(path: &Path, forms: &BTreeSet<String>) -> (usize, Vec<String>) {
    let (mut lines, mut bad) = (0, Vec::new());
    for line in BufReader::new(LogFile::open(path).unwrap()).split(b'\n') {
        let line = line.unwrap();
        let line = String::from_utf8_lossy(&line);
        lines += 1;
        if !found(forms, &line).is_empty() && bad.len() < 10 {
            bad.push(line.into_owned());
        }
    }
    (lines, bad)
}

/// Searches what the suites of the engine and of providers log at the level TRACE with this backend, and the journals of their emulators. With
/// a number of lines, all tests run once, and those that log the most are repeated until there are so many.
#[test]
fn nothing_secret_is_in_the_trace_logs_of_the_suites() {
    let wanted = std::env::var(LINES).ok().map(|lines| lines.parse::<usize>().unwrap());
    let talkative: &[&str] = &[
        "provider_suite::simulated",
        "running_groups",
        "secrets::",
        "conformance::secret_rotation",
        "conformance::create_then_503",
    ];
    let (forms, mut total) = (forms(), 0);
    let mut filters: &[&str] = if wanted.is_some() { &["backend::tests"] } else { talkative };
    while total == 0 || wanted.is_some_and(|wanted| total < wanted) {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("trace");
        run_traced(&path, filters);
        let (lines, bad) = search(&path, &forms);
        let (_, printed) = search(&path.with_extension("output"), &forms);
        assert!(bad.is_empty() && printed.is_empty(), "{} {}", bad.join("\n"), printed.join("\n"));
        assert!(lines > 1000, "only {lines} lines were logged");
        total += lines;
        filters = talkative;
    }
    println!("{total} lines have nothing secret");
}

/// What the engine's suite and the tests of running groups and accounts have said to their emulators, and those to them. Its long cases say
/// nothing else.
#[test]
#[ignore = "needs the vendor SDKs: make test"]
fn the_vendors_models_know_all_that_the_engines_suite_says() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("journal");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["backend::tests::conformance::", "running_groups", "backend::tests::account::"])
        .args(["--skip", "thousand", "--skip", "idle_hour", "--skip", "throttle_storm"])
        .env(JOURNAL, &path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = std::fs::read_to_string(&path).unwrap();
    let journal: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let actions: BTreeSet<&str> = journal.iter().filter_map(|entry| entry["action"].as_str()).collect();
    for action in [
        "CreateContainerGroup",
        "DeleteContainerGroup",
        "DescribeContainerGroupEvents",
        "DescribeContainerGroupStatus",
        "DescribeContainerGroups",
        "UpdateContainerGroup",
    ] {
        assert!(actions.contains(action), "{action}: {actions:?}");
    }
    let findings = vendor::judge("eci", &journal);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
