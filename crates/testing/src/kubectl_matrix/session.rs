//! A namespace with a pod on the node, and kubectl commands in it.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Stdio, time::Duration};

use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::Output;

/// Time limit of a kubectl command; long, because test machines can be busy.
pub(super) const TIMEOUT: Duration = Duration::from_mins(2);

/// The node to test.
#[derive(Clone, Debug)]
pub struct Target {
    /// The kubectl program.
    pub kubectl: PathBuf,
    /// The user and the API server.
    pub kubeconfig: PathBuf,
    /// The node that runs the pods.
    pub node: String,
    /// The image of the containers.
    pub image: String,
    /// A command that writes a line per second, for providers that run commands.
    pub command: Vec<String>,
    /// Annotations that make a container exit with code 1 after a second; empty for providers that run commands.
    pub crashing: BTreeMap<String, String>,
}

/// A pod `web` with a container `main` that runs on the node.
#[derive(Debug)]
pub struct KubectlSession {
    /// The node to test.
    pub target: Target,
    /// The namespace, which is deleted with the session.
    pub namespace: String,
    /// A folder for files.
    pub folder: TempDir,
}

/// A running kubectl command.
#[derive(Debug)]
pub struct RunningKubectl {
    child: Child,
    /// Its standard input.
    pub stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

// === impl KubectlSession ===

impl KubectlSession {
    /// Creates the namespace and the pod, and waits until the pod is Ready.
    pub async fn open(target: Target) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let namespace = format!("matrix-{:08x}", rand::random::<u32>());
        let session = Self { target, namespace, folder };
        session.run_ok(&["create", "namespace", &session.namespace]).await;
        // A controller may have created it already.
        let account = session.run(&["create", "serviceaccount", "default"]).await;
        assert!(account.success() || account.stderr.contains("already exists"), "{account:?}");
        let command = session.target.command.clone();
        session.pod("web", "Always", &BTreeMap::new(), &command).await;
        session.run_ok(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
        session
    }

    /// Creates a pod with a container `main` on the node.
    pub async fn pod(
        &self,
        name: &str,
        restart_policy: &str,
        annotations: &BTreeMap<String, String>,
        command: &[String],
    ) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "nodeName": self.target.node,
                "restartPolicy": restart_policy,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": self.target.image, "command": command}],
            },
        });
        let file = self.folder.path().join(format!("{name}.json"));
        fs::write(&file, pod.to_string()).expect("a file is written");
        self.run_ok(&["create", "-f", file.to_str().expect("a path in UTF-8")]).await;
    }

    /// A kubectl command in the namespace of the session.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.target.kubectl);
        self.set_environment(&mut command);
        command.arg("--namespace").arg(&self.namespace).args(args);
        command
    }

    /// Sets the environment of kubectl.
    pub(super) fn set_environment(&self, command: &mut Command) {
        command
            .env("KUBECONFIG", &self.target.kubeconfig)
            .env("KUBECACHEDIR", self.folder.path().join("kubectl-cache"))
            .env("NO_PROXY", "*")
            .kill_on_drop(true);
    }

    /// Runs kubectl without input.
    pub async fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, &[]).await
    }

    /// Runs kubectl with this input from a pipe.
    pub async fn run_with(&self, args: &[&str], input: &[u8]) -> Output {
        let (output, stdout) = self.raw(self.command(args), input).await;
        Output { stdout: String::from_utf8_lossy(&stdout).into_owned(), ..output }
    }

    /// Runs a command whose output is not text.
    pub async fn raw(&self, mut command: Command, input: &[u8]) -> (Output, Vec<u8>) {
        let shown = format!("{:?}", command.as_std());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = async {
            let mut child = command.spawn().expect("kubectl starts");
            let mut stdin = child.stdin.take().expect("a pipe");
            let feed = async move {
                // kubectl may end before it has read everything.
                let _ = stdin.write_all(input).await;
                drop(stdin);
            };
            let (output, ()) = tokio::join!(child.wait_with_output(), feed);
            output.expect("kubectl is waited for")
        };
        let output = tokio::time::timeout(TIMEOUT, run).await;
        let output = output.unwrap_or_else(|_| panic!("not finished after {TIMEOUT:?}: {shown}"));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (Output { code: output.status.code(), stdout: String::new(), stderr }, output.stdout)
    }

    /// Runs kubectl, which must succeed, and returns its output.
    pub async fn run_ok(&self, args: &[&str]) -> String {
        self.run_ok_with(args, &[]).await
    }

    /// Runs kubectl with input, which must succeed, and returns its output.
    pub async fn run_ok_with(&self, args: &[&str], input: &[u8]) -> String {
        let output = self.run_with(args, input).await;
        assert!(output.success(), "kubectl {args:?}: {output:?}");
        output.stdout
    }

    /// Starts a kubectl command that keeps running.
    pub fn start(&self, args: &[&str]) -> RunningKubectl {
        let mut command = self.command(args);
        let log = fs::File::create(self.folder.path().join("stderr")).expect("a file");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("kubectl starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        RunningKubectl { stdin: child.stdin.take(), child, lines, seen: Vec::new() }
    }

    /// Deletes the namespace without waiting.
    pub async fn close(self) {
        self.run_ok(&["delete", "pods", "--all", "--wait=false"]).await;
        self.run_ok(&["delete", "namespace", &self.namespace, "--wait=false"]).await;
    }
}

// === impl RunningKubectl ===

impl RunningKubectl {
    /// Waits for the first line for which `wanted` returns a value.
    pub async fn line<T>(&mut self, what: &str, mut wanted: impl FnMut(&str) -> Option<T>) -> T {
        let search = async {
            while let Some(line) = self.lines.next_line().await.expect("kubectl writes text") {
                let found = wanted(&line);
                self.seen.push(line);
                if let Some(found) = found {
                    return Some(found);
                }
            }
            None
        };
        let found = tokio::time::timeout(TIMEOUT, search).await.ok();
        match found {
            Some(Some(found)) => found,
            Some(None) => panic!("kubectl has ended without {what}: {:?}", self.seen),
            None => panic!("no {what} after {TIMEOUT:?}: {:?}", self.seen),
        }
    }

    /// Kills it.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("kubectl is killed");
    }

    /// Waits for its end.
    pub async fn end(mut self) -> Option<i32> {
        drop(self.stdin.take());
        let end = tokio::time::timeout(TIMEOUT, self.child.wait()).await.expect("kubectl ends in time");
        end.expect("kubectl is waited for").code()
    }
}
