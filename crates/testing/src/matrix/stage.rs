//! A namespace with a pod on the node, and kubectl to reach it.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Stdio, time::Duration};

use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::Output;

/// No call of kubectl takes longer, on however busy a machine.
pub(super) const PATIENCE: Duration = Duration::from_mins(2);

/// Where to play.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The program.
    pub kubectl: PathBuf,
    /// Who calls, and which API server.
    pub kubeconfig: PathBuf,
    /// The node that runs the pods.
    pub node: String,
    /// The image of the containers.
    pub image: String,
    /// The command of a container that writes a line a second, for providers that run commands.
    pub command: Vec<String>,
    /// Annotations by which a pod's container ends with code 1 after a second; for providers that run commands, nothing.
    pub crashing: BTreeMap<String, String>,
}

/// A pod `web` with a container `main` that runs on the node.
#[derive(Debug)]
pub struct Stage {
    /// Where it is played.
    pub subject: Subject,
    /// The namespace, which goes with the stage.
    pub namespace: String,
    /// A folder for files.
    pub folder: TempDir,
}

/// A kubectl that goes on.
#[derive(Debug)]
pub struct Ongoing {
    child: Child,
    /// What it reads.
    pub stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

// === impl Stage ===

impl Stage {
    /// Makes the namespace and the pod, and waits until it is Ready.
    pub async fn open(subject: Subject) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let namespace = format!("matrix-{:08x}", rand::random::<u32>());
        let stage = Self { subject, namespace, folder };
        stage.good(&["create", "namespace", &stage.namespace]).await;
        // Where no controller makes it. Where one does, it may have been quicker.
        let account = stage.run(&["create", "serviceaccount", "default"]).await;
        assert!(account.success() || account.stderr.contains("already exists"), "{account:?}");
        let command = stage.subject.command.clone();
        stage.pod("web", "Always", &BTreeMap::new(), &command).await;
        stage.good(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
        stage
    }

    /// A pod with a container `main`, bound to the node.
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
                "nodeName": self.subject.node,
                "restartPolicy": restart_policy,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": self.subject.image, "command": command}],
            },
        });
        let file = self.folder.path().join(format!("{name}.json"));
        fs::write(&file, pod.to_string()).expect("a file is written");
        self.good(&["create", "-f", file.to_str().expect("a path in UTF-8")]).await;
    }

    /// kubectl with these arguments, in the stage's namespace.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.subject.kubectl);
        self.surround(&mut command);
        command.arg("--namespace").arg(&self.namespace).args(args);
        command
    }

    /// What kubectl must find around it.
    pub(super) fn surround(&self, command: &mut Command) {
        command
            .env("KUBECONFIG", &self.subject.kubeconfig)
            .env("KUBECACHEDIR", self.folder.path().join("kubectl-cache"))
            .env("NO_PROXY", "*")
            .kill_on_drop(true);
    }

    /// Runs kubectl to its end, without input.
    pub async fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, &[]).await
    }

    /// Runs kubectl to its end, with this input from a pipe.
    pub async fn run_with(&self, args: &[&str], input: &[u8]) -> Output {
        let (output, stdout) = self.raw(self.command(args), input).await;
        Output { stdout: String::from_utf8_lossy(&stdout).into_owned(), ..output }
    }

    /// The same for output that is no text.
    pub async fn raw(&self, mut command: Command, input: &[u8]) -> (Output, Vec<u8>) {
        let shown = format!("{:?}", command.as_std());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = async {
            let mut child = command.spawn().expect("kubectl starts");
            let mut stdin = child.stdin.take().expect("a pipe");
            let feed = async move {
                // kubectl may have ended before it read all.
                let _ = stdin.write_all(input).await;
                drop(stdin);
            };
            let (output, ()) = tokio::join!(child.wait_with_output(), feed);
            output.expect("kubectl is waited for")
        };
        let output = tokio::time::timeout(PATIENCE, run).await;
        let output = output.unwrap_or_else(|_| panic!("no end after {PATIENCE:?}: {shown}"));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (Output { code: output.status.code(), stdout: String::new(), stderr }, output.stdout)
    }

    /// Runs kubectl, which must end well, and answers what it wrote.
    pub async fn good(&self, args: &[&str]) -> String {
        self.good_with(args, &[]).await
    }

    /// The same with input.
    pub async fn good_with(&self, args: &[&str], input: &[u8]) -> String {
        let output = self.run_with(args, input).await;
        assert!(output.success(), "kubectl {args:?}: {output:?}");
        output.stdout
    }

    /// Starts a kubectl that does not end by itself.
    pub fn start(&self, args: &[&str]) -> Ongoing {
        let mut command = self.command(args);
        let log = fs::File::create(self.folder.path().join("stderr")).expect("a file");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("kubectl starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Ongoing { stdin: child.stdin.take(), child, lines, seen: Vec::new() }
    }

    /// Deletes the namespace, without waiting for it.
    pub async fn close(self) {
        self.good(&["delete", "pods", "--all", "--wait=false"]).await;
        self.good(&["delete", "namespace", &self.namespace, "--wait=false"]).await;
    }
}

// === impl Ongoing ===

impl Ongoing {
    /// The first line, from here on, for which the question has an answer.
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
        let found = tokio::time::timeout(PATIENCE, search).await.ok();
        match found {
            Some(Some(found)) => found,
            Some(None) => panic!("kubectl has ended without {what}: {:?}", self.seen),
            None => panic!("no {what} after {PATIENCE:?}: {:?}", self.seen),
        }
    }

    /// Ends it at once.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("kubectl is killed");
    }

    /// Waits for its end.
    pub async fn end(mut self) -> Option<i32> {
        drop(self.stdin.take());
        let end = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("kubectl ends in time");
        end.expect("kubectl is waited for").code()
    }
}
