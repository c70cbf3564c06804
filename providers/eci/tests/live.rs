//! The conformance suite, and a pod with its log and a command, on a real account:
//! `VK_LIVE_ECI=eci.yaml cargo test -p vk-provider-eci --features live --test live -- --nocapture`. It costs money, and is not built otherwise. At the end
//! it removes every group of its node, found by its tags, also if a case has failed or panicked; what a killed run has left, the next one removes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed assumption of a test is a failed test, and people watch it"
)]

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use vk_provider::{
    Config, Context, Extensions, Factory as _, NodeEvent, PodRef, Provider,
    ability::{ExecOptions, LogBody, LogOptions, Started},
    error::Kind,
    finding::FindingLevel,
    inventory::{Inventory, InventoryScope},
};
use vk_provider_eci::EciFactory;
use vk_supervisor::Supervisor;
use vk_testing::{
    conformance::{self, CaseResult, Feature, Subject},
    eventually,
};

/// The node of this test: no other may have this name in the account.
const NODE: &str = "vk-live-test";
/// An image that the service pulls without a public address.
const IMAGE: &str = "registry-vpc.cn-hangzhou.aliyuncs.com/eci_open/busybox:1.30";
/// How long a group may take to start, to end, or to write.
const STARTED: Duration = Duration::from_mins(5);
const CLEAN_UPS: u32 = 30;
const BETWEEN_CLEAN_UPS: Duration = Duration::from_secs(10);

/// The account that the configuration names.
struct Account(Config);

fn config() -> Config {
    let path = std::env::var_os("VK_LIVE_ECI").expect("set VK_LIVE_ECI to the path of a configuration");
    let path = PathBuf::from(path);
    let text = std::fs::read_to_string(&path).unwrap();
    Config::File { path, text }
}

fn context() -> Context {
    Context {
        node_name: NODE.to_owned(),
        internal_ip: "127.0.0.1".parse().unwrap(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: Some("vk-live-test".to_owned()),
        state_dir: PathBuf::from("unused"),
        shared_dir: PathBuf::from("unused"),
        extensions: Extensions::new(),
        supervisor: Supervisor::new(),
    }
}

#[async_trait::async_trait]
impl Subject for Account {
    async fn open(&self, context: Context) -> vk_provider::Result<Arc<dyn Provider>> {
        let context = Context { node_name: NODE.to_owned(), cluster: Some(NODE.to_owned()), ..context };
        let backend = EciFactory::default().open(self.0.clone(), context).await?;
        match backend.nodes().next().await {
            Some(NodeEvent::Added(_, provider)) => Ok(provider),
            other => panic!("a backend with one node begins with it: {other:?}"),
        }
    }

    fn lacks(&self) -> &[Feature] {
        &[
            Feature::Attach,
            Feature::PortForward,
            Feature::Fit,
            Feature::EphemeralContainers,
            Feature::ShortenGrace,
            Feature::ClosedPorts,
        ]
    }

    fn limit(&self) -> Duration {
        Duration::from_mins(5)
    }
}

/// Removes every group of this test's node, and waits until the account has none.
async fn clean_up(inventory: &Arc<dyn Inventory>) {
    let scope = InventoryScope { cluster: None, node: Some(NODE.to_owned()) };
    for _ in 0..CLEAN_UPS {
        let groups = inventory.groups(&scope).await.unwrap();
        if groups.is_empty() {
            return;
        }
        for group in groups {
            match inventory.remove(&scope, &group.id).await {
                Err(error) if *error.kind() != Kind::NotFound => println!("{}: {error}", group.id),
                _ => {}
            }
        }
        tokio::time::sleep(BETWEEN_CLEAN_UPS).await;
    }
    panic!(
        "groups of the node {NODE} are left in the account: remove them with `virtual-kubelet groups --node {NODE} --remove ID`"
    );
}

/// Runs all cases of the suite, one after the other. Returns what failed.
async fn run_suite() -> Vec<String> {
    let mut failed = Vec::new();
    for case in conformance::cases() {
        let outcome = AssertUnwindSafe(case.run(Arc::new(Account(config())))).catch_unwind().await;
        match outcome {
            Ok(CaseResult::Violated(violation)) => failed.push(case.report(&violation)),
            Ok(_) => {}
            Err(_) => failed.push(format!("{} panicked: see above", case.name)),
        }
    }
    failed
}

/// Runs a pod, reads its log, runs a command in it, and deletes it.
async fn run_pod() {
    let provider = Account(config()).open(context()).await.unwrap();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "hello", "namespace": "vk-live-test", "uid": "5d1f5c2e-8a4b-4f0e-9f51-1d7a5f6c2b90"},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "main", "image": IMAGE, "command": ["sh", "-c", "echo hello; sleep 600"],
                "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}},
            }],
        },
    }))
    .unwrap();
    let reference = PodRef::new("vk-live-test", "hello", pod.metadata.uid.as_deref().unwrap());
    let bundle = conformance::bundle(&Arc::new(pod), true);
    provider.create_pod(bundle).await.unwrap();
    let phase = async |expected: &str| {
        let status = provider.pod_status(&reference).await;
        status.is_ok_and(|status| status.phase.as_deref() == Some(expected))
    };
    eventually("the pod runs", STARTED, || async {
        phase("Running").await.then_some(()).ok_or("it does not")
    })
    .await;
    let container = reference.container("main");
    eventually("the log is there", STARTED, || async {
        let opened = provider.logs().unwrap().open(&container, &LogOptions::default()).await;
        let (LogBody::Final(lines) | LogBody::Stamped(lines) | LogBody::Plain(lines)) =
            opened.map_err(|error| error.to_string())?;
        let lines: Vec<_> = lines.collect().await;
        let text: Vec<u8> = lines.into_iter().flatten().flatten().collect();
        let text = String::from_utf8_lossy(&text).into_owned();
        if text.contains("hello") { Ok(()) } else { Err(text) }
    })
    .await;
    let options = ExecOptions { stdout: true, stderr: true, ..ExecOptions::default() };
    let command = ["sh", "-c", "echo from exec; exit 7"].map(str::to_owned);
    let started = provider.exec().unwrap().start(&container, &command, &options).await.unwrap();
    let Started::Session(mut session) = started else { panic!("a command is a session") };
    let mut output = String::new();
    session.stdout.as_mut().unwrap().read_to_string(&mut output).await.unwrap();
    assert!(output.contains("from exec"), "{output}");
    println!("the command ended with {:?}", session.exit.await);
    provider.delete_pod(&reference, None, Duration::from_secs(2)).await.unwrap();
    eventually("the pod is gone", STARTED, || async {
        match provider.pod_status(&reference).await {
            Err(error) if *error.kind() == Kind::NotFound => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// One test, because all cases share the node: what removes groups must not run beside what creates them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_and_a_pod_pass_and_nothing_is_left_in_the_account() {
    let factory = EciFactory::default();
    let findings = factory.examine(config(), context()).await;
    assert!(findings.iter().all(|finding| finding.level < FindingLevel::Error), "{findings:?}");
    let inventory = factory.inventory(config(), context()).await.unwrap().unwrap();
    // Of a run that was killed.
    clean_up(&inventory).await;
    let outcome = AssertUnwindSafe(async {
        run_pod().await;
        run_suite().await
    });
    let outcome = outcome.catch_unwind().await;
    clean_up(&inventory).await;
    let failed = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
