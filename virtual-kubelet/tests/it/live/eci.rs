//! The provider `eci` with the real command, a real control plane and kubectl. The cloud is the emulator, whose containers are processes
//! of this host.

mod commands;
mod deployment;
mod outages;
#[cfg(feature = "e2e")]
mod rollout;
mod streams;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use vk_testing::{
    ControlPlane,
    cloud::eci::{self, BillingRecord, Containers, EciEmulator, Options, Timing},
    control_plane::Namespace,
    eventually,
};

use super::{Process, becomes_ready, run};

/// Containers on a machine that does other things too.
const LATER: Duration = Duration::from_secs(90);

/// A node on an emulated cloud, with a namespace of its own.
struct EciNode<'a> {
    cluster: &'a ControlPlane,
    namespace: Namespace,
    emulator: EciEmulator,
    name: String,
    folder: TempDir,
    /// The budget in the configuration of the provider.
    budget: Value,
    process: Option<Process>,
}

/// The end of a kubectl command.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn emulator() -> EciEmulator {
    let mut options = Options { containers: Containers::Processes, ..Options::new() };
    options.settings.timing = Timing::instant();
    EciEmulator::start(options).await.unwrap()
}

/// Checks that no second of a pod was billed twice: no two groups of one pod existed at the same time. Returns how many pods had a group.
fn billed_once(bills: &[BillingRecord]) -> usize {
    let mut owners: BTreeMap<String, Vec<&BillingRecord>> = BTreeMap::new();
    for bill in bills {
        // The name is that of the pod's UID, and of the attempt from the second on.
        let pod = bill.name.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
        owners.entry(pod).or_default().push(bill);
    }
    for (pod, bills) in &mut owners {
        bills.sort_by_key(|bill| bill.from);
        for pair in bills.windows(2) {
            assert!(pair[0].to.is_some_and(|to| to <= pair[1].from), "{pod} is paid for twice: {pair:?}");
        }
    }
    owners.len()
}

fn bill(name: &str, from: i64, to: Option<i64>) -> BillingRecord {
    let time = |second| Timestamp::from_second(second).unwrap();
    let (id, name) = (format!("eci-{from}"), name.to_owned());
    BillingRecord { id, name, from: time(from), to: to.map(time), cpu: 2.0, memory: 4.0 }
}

#[test]
fn attempts_one_after_the_other_are_paid_for_once() {
    let bills = [bill("vk-b", 20, None), bill("vk-a", 0, Some(10)), bill("vk-a-2", 10, None)];
    assert_eq!(billed_once(&bills), 2);
}

#[test]
#[should_panic(expected = "vk-a is paid for twice")]
fn a_second_attempt_at_the_same_time_is_paid_for_twice() {
    billed_once(&[bill("vk-a-2", 9, Some(20)), bill("vk-a", 0, Some(10))]);
}

/// A cloud whose containers are simulated.
async fn simulated() -> EciEmulator {
    let mut options = Options::new();
    options.settings.timing = Timing::instant();
    EciEmulator::start(options).await.unwrap()
}

// === impl EciNode ===

impl<'a> EciNode<'a> {
    /// Starts the cloud and the command, and waits until the node is Ready.
    async fn start(cluster: &'a ControlPlane, name: &str) -> Self {
        Self::start_on(cluster, name, emulator().await).await
    }

    /// The same on this cloud.
    async fn start_on(cluster: &'a ControlPlane, name: &str, emulator: EciEmulator) -> Self {
        Self::start_with(cluster, name, emulator, json!({"requestsPerSecond": 100, "burst": 100})).await
    }

    /// The same with a budget.
    async fn start_with(cluster: &'a ControlPlane, name: &str, emulator: EciEmulator, budget: Value) -> Self {
        let mut node = Self {
            cluster,
            namespace: cluster.namespace(name).await.unwrap(),
            emulator,
            name: format!("eci-{name}"),
            folder: TempDir::new().unwrap(),
            budget,
            process: None,
        };
        node.process = Some(node.launch(&[]));
        becomes_ready(cluster, &node.name).await;
        node
    }

    /// The configuration of the provider.
    fn config(&self) -> PathBuf {
        let path = self.folder.path().join("eci.json");
        let config = json!({
            "region": "cn-hangzhou",
            "vSwitches": ["vsw-a", "vsw-b"],
            "securityGroup": "sg-1",
            "clusterName": "live",
            "credentials": "static",
            "accessKey": "testid",
            "secretKey": "testsecret",
            "endpoint": self.emulator.endpoint(),
            "budget": self.budget,
            "prices": {"cpuHour": 0.049, "memoryGiBHour": 0.0061, "currency": "USD"},
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Starts the command.
    fn launch(&self, flags: &[&str]) -> Process {
        let serving = self.cluster.serving_certificate(&self.name, &["127.0.0.1", &self.name]).unwrap();
        let file = |name: &str, text: &str| {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let config = self.config();
        let (certificate, key) =
            (file("serving.crt", &serving.cert_pem), file("serving.key", &serving.key_pem));
        let mut all = vec![
            "--provider",
            "eci",
            "--nodename",
            &self.name,
            "--provider-config",
            config.to_str().unwrap(),
        ];
        all.extend(["--tls-cert-file", &certificate, "--tls-private-key-file", &key]);
        all.extend(["--address", "127.0.0.1", "--ping-interval", "1s"]);
        all.extend(flags);
        run(self.cluster, &all).start()
    }

    async fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments, "").await;
        assert_eq!(output.code, Some(0), "kubectl {arguments:?}: {output:?}");
        output.stdout
    }

    /// Runs kubectl with this input.
    async fn try_kubectl(&self, arguments: &[&str], input: &str) -> Ended {
        let mut process = tokio::process::Command::new(self.cluster.kubectl().unwrap())
            .args(["-n", self.namespace.name()])
            .args(arguments)
            .env("KUBECONFIG", self.cluster.admin_kubeconfig())
            .env("KUBECACHEDIR", self.folder.path().join("kubectl-cache"))
            .env("NO_PROXY", "*")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = tokio::time::timeout(LATER, process.wait_with_output()).await;
        let output = output.unwrap_or_else(|_| panic!("kubectl {arguments:?} does not end")).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    async fn apply(&self, object: &Value) {
        let output = self.try_kubectl(&["apply", "-f", "-"], &object.to_string()).await;
        assert_eq!(output.code, Some(0), "{output:?}");
    }

    async fn get(&self, what: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", what, "-o", "json"]).await).unwrap()
    }

    /// The specification of a pod on this node.
    fn spec(&self, script: &str) -> Value {
        json!({
            "nodeName": self.name,
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 3,
            "dnsPolicy": "Default",
            "containers": [{
                "name": "main",
                "image": "busybox:1",
                "command": ["sh", "-c", script],
                "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}},
            }],
        })
    }

    fn pod(&self, name: &str, script: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": self.spec(script),
        })
    }

    async fn ready(&self, pod: &str) {
        self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=60s"]).await;
    }

    /// Waits until the cloud has one group for each pod that has not ended, and no other.
    async fn agrees(&self) {
        eventually("the cloud has a group for each pod", LATER, || async {
            let pods = self.get("pods").await;
            let uids: BTreeSet<String> = pods["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned())
                .collect();
            let groups = self.emulator.groups();
            let mut owners = BTreeMap::<String, usize>::new();
            for group in &groups {
                let uid = group.tags.iter().map(|(_, value)| value).find(|value| uids.contains(*value));
                *owners.entry(uid.unwrap_or(&group.name).clone()).or_default() += 1;
            }
            let is_right = owners.len() == uids.len()
                && owners.iter().all(|(uid, count)| uids.contains(uid) && *count == 1);
            if is_right { Ok(()) } else { Err(format!("pods {uids:?}, groups {groups:?}")) }
        })
        .await;
    }

    /// Deletes all pods, and checks that nothing is left in the cloud, that no second of a pod was paid for twice, and that the vendor's
    /// models understand all that was said.
    async fn close(self) {
        self.kubectl(&["delete", "deployments,jobs,pods", "--all", "--wait=false"]).await;
        eventually("the cloud is empty", LATER, || async {
            let groups = self.emulator.groups();
            if groups.is_empty() { Ok(()) } else { Err(format!("{groups:?}")) }
        })
        .await;
        let bills = self.emulator.bills();
        billed_once(&bills);
        for bill in bills {
            assert!(bill.to.is_some(), "still paid for: {bill:?}");
        }
        tokio::task::block_in_place(|| eci::judge(&self.emulator));
    }
}
