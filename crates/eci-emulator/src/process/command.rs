//! Command lines of util-linux, and commands in containers that run.

use std::{path::Path, process::Stdio, sync::Arc, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, Command as Process},
    sync::mpsc,
    task::JoinSet,
};

use super::{Handle, Processes, root::Mount, stop, terminal};
use crate::exec::{Command, Input, Output, Running};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Mounts, then runs the container. Arguments: host name, root, number of mounts, three for each mount, then the command.
///
/// The shell stays as the first process of the namespace: it is killed with the emulator, which a process that has changed its user
/// would not be, and its exit code says how the container has ended.
const LAUNCH: &str = r#"
set -e
/bin/hostname "$1" 2>/dev/null || true
root=$2 count=$3
shift 3
while [ "$count" -gt 0 ]; do
  /bin/mount --bind "$1" "$2"
  [ "$3" = rw ] || /bin/mount -o remount,bind,ro "$2"
  shift 3
  count=$((count - 1))
done
/bin/mount -t proc proc "$root/proc"
# What the shell says about the end of the container is not the container's.
exec 3>&2 2>/dev/null
set +e
(exec /usr/bin/unshare "$@" 2>&3 3>&-)
exit $?
"#;

/// Who runs a container's processes.
#[derive(Clone, Debug, Default)]
pub(super) struct User {
    uid: Option<i64>,
    gid: Option<i64>,
}

// === impl User ===

impl User {
    pub(super) fn of(spec: &Value) -> Self {
        Self {
            uid: spec["SecurityContext"]["RunAsUser"].as_i64(),
            gid: spec["SecurityContextRunAsGroup"].as_i64(),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let uid = self.uid.map(|uid| format!("--setuid={uid}"));
        let gid = self.gid.map(|gid| format!("--setgid={gid}"));
        gid.into_iter().chain(uid).collect()
    }
}

/// The variables of a container.
pub(super) fn environment(spec: &Value, ip: &str, host: &str) -> Vec<(String, String)> {
    let mut variables = vec![
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOSTNAME".to_owned(), host.to_owned()),
        ("HOME".to_owned(), "/root".to_owned()),
    ];
    for variable in spec["EnvironmentVar"].as_array().into_iter().flatten() {
        let key = variable["Key"].as_str().unwrap_or_default().to_owned();
        let is_address = variable["FieldRef"]["FieldPath"] == "status.podIP";
        let value = if is_address { ip } else { variable["Value"].as_str().unwrap_or_default() };
        variables.retain(|(other, _)| *other != key);
        variables.push((key, value.to_owned()));
    }
    variables
}

/// The command of a container. Without one it is what a web server would do: it runs until it is stopped.
pub(super) fn words(spec: &Value) -> Vec<String> {
    let list = |name: &str| -> Vec<String> {
        let items = spec[name].as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let words = [list("Command"), list("Arg")].concat();
    if words.is_empty() {
        return ["/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"]
            .map(str::to_owned)
            .into();
    }
    words
}

/// The process that runs a container.
pub(super) fn launch(
    host: &str,
    root: &Path,
    mounts: &[Mount],
    spec: &Value,
    environment: &[(String, String)],
) -> Process {
    let mut process = Process::new("/usr/bin/setpriv");
    process.args(["--pdeathsig", "KILL", "/usr/bin/unshare", "--mount", "--uts", "--ipc", "--pid", "--fork"]);
    process.args(["--kill-child=KILL", "--propagation", "private", "/bin/sh", "-c", LAUNCH, "launch", host]);
    process.arg(root).arg(mounts.len().to_string());
    for mount in mounts {
        let mode = if mount.is_read_only { "ro" } else { "rw" };
        process.arg(&mount.source).arg(&mount.target).arg(mode);
    }
    let folder = spec["WorkingDir"].as_str().filter(|folder| !folder.is_empty()).unwrap_or("/");
    process.arg(format!("--root={}", root.display())).arg(format!("--wd={folder}"));
    process.args(User::of(spec).arguments()).arg("--").args(words(spec));
    process.env_clear().envs(environment.iter().cloned());
    process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    process
}

// === impl Processes ===

impl Processes {
    /// Starts a command in a container that runs.
    pub(crate) fn exec(&self, command: &Command) -> std::io::Result<Running> {
        let handle = self.handle(command.group, command.container);
        let handle = handle.ok_or_else(|| std::io::Error::other("the container does not run"))?;
        if command.tty {
            return terminal::exec(&handle, command);
        }
        let mut process = enter(&handle, &command.words);
        if !command.stdin {
            process.stdin(Stdio::null());
        }
        let mut child = process.spawn()?;
        let group = KillGroup::of(&child);
        let (input, receiver) = mpsc::channel(16);
        let (sender, output) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(write_input(receiver, child.stdin.take()));
        let (out, err) = (child.stdout.take(), child.stderr.take());
        tasks.spawn(async move {
            let _killed_when_dropped = group;
            tokio::join!(pump(out, &sender, Output::Out), pump(err, &sender, Output::Err));
            let code = child.wait().await.map_or(-1, |status| stop::code(status).0);
            let _ = sender.send(Output::End(code)).await;
        });
        Ok(Running::new(input, output, tasks))
    }

    /// Runs a command in a container to its end. The exit code, or why there is none.
    pub(super) async fn run_in(
        &self,
        handle: &Handle,
        words: &[String],
        limit: Duration,
    ) -> Result<(), String> {
        let mut process = enter(handle, words);
        process.stdin(Stdio::null());
        let child = process.spawn().map_err(|error| error.to_string())?;
        let _killed_when_dropped = KillGroup::of(&child);
        match tokio::time::timeout(limit, child.wait_with_output()).await {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
                Err(format!("exited with {}: {}", stop::code(output.status).0, text.trim()))
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("command timed out after {limit:?}")),
        }
    }
}

/// Kills a process group that this emulator has started.
pub(super) struct KillGroup(Option<Pid>);

// === impl KillGroup ===

impl KillGroup {
    pub(super) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for KillGroup {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // It may have ended already.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// A process that enters a container: its namespaces, root, variables and user.
fn enter(handle: &Handle, words: &[String]) -> Process {
    let arguments = nsenter(handle);
    let mut process = Process::new(&arguments[0]);
    process.args(&arguments[1..]).args(words);
    process.env_clear().envs(handle.environment.iter().cloned());
    process.process_group(0).kill_on_drop(true);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    process
}

/// The command line that enters a container, without the command.
pub(super) fn nsenter(handle: &Handle) -> Vec<String> {
    let pid = handle.pid.to_string();
    let fixed = ["/usr/bin/nsenter", "-t", &pid, "--mount", "--uts", "--ipc", "--pid", "--root", "--wd"];
    let mut arguments: Vec<String> = fixed.map(str::to_owned).into();
    arguments.extend(handle.user.arguments());
    arguments.push("--".to_owned());
    arguments
}

async fn write_input(mut input: mpsc::Receiver<Input>, mut stdin: Option<ChildStdin>) {
    while let Some(input) = input.recv().await {
        if let (Input::Data(bytes), Some(pipe)) = (input, &mut stdin)
            && (pipe.write_all(&bytes).await.is_err() || pipe.flush().await.is_err())
        {
            stdin = None;
        }
    }
}

async fn pump(
    from: Option<impl tokio::io::AsyncRead + Unpin>,
    to: &mpsc::Sender<Output>,
    kind: fn(Vec<u8>) -> Output,
) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 32 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if to.send(kind(buffer[..length].to_vec())).await.is_err() {
            return;
        }
    }
}

/// For tasks that must not keep the emulator.
pub(super) type Weak = std::sync::Weak<crate::emulator::Emulator>;

/// The containers of an emulator that still exists.
pub(super) fn processes(emulator: &Arc<crate::emulator::Emulator>) -> &Processes {
    emulator.processes.as_ref().expect("only emulators with processes start any")
}
