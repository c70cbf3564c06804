//! Checks whether a kubelet uses the same runtime. A kubelet kills pods with its labels that it does not know.

use std::{collections::BTreeMap, fs, path::Path};

use vk_pod_engine::{host::Host, snapshot::label};
use vk_provider::Finding;

use crate::{client::Cri, socket::SOCKETS};

const REMEDY: &str = "give each its own runtime: a kubelet kills pods that it does not know";

/// Checks for pods of others on the runtime.
pub(super) async fn foreign_pods(cri: &Cri, node: &str) -> Finding {
    let what = "foreign pods";
    let all = match cri.sandbox_labels().await {
        Ok(all) => all,
        Err(error) => return Finding::warning(what, error.message(), "see the runtime's log"),
    };
    let ours = all.iter().filter(|labels| labels.get(label::NODE).is_some_and(|owner| owner == node)).count();
    let foreign: Vec<&BTreeMap<String, String>> = all
        .iter()
        .filter(|labels| labels.contains_key(label::POD_UID) && !labels.contains_key(label::NODE))
        .collect();
    let Some(first) = foreign.first() else {
        return Finding::ok(what, format!("none, and {ours} of this node"));
    };
    let name = |key: &str| first.get(key).map(String::as_str).unwrap_or_default();
    let found = format!(
        "{} with a kubelet's labels, such as {}/{}; they are left alone",
        foreign.len(),
        name(label::POD_NAMESPACE),
        name(label::POD_NAME)
    );
    Finding::warning(what, found, REMEDY)
}

/// Checks for a kubelet on this host that uses the same runtime.
pub(super) fn other_kubelet(socket: Option<&Path>, machine: &Host) -> Finding {
    let what = "another kubelet";
    let Some(pid) = kubelet_process(machine) else { return Finding::ok(what, "none runs") };
    let line = machine.read(&format!("proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&str> = line.split('\0').filter(|word| !word.is_empty()).collect();
    let endpoint = flag(&words, "--container-runtime-endpoint").map(str::to_owned).or_else(|| {
        let path = flag(&words, "--config")?;
        configured_endpoint(&machine.read(path.trim_start_matches('/')).ok()?)
    });
    // The kubelet's default is containerd's socket.
    let endpoint = endpoint.unwrap_or_else(|| SOCKETS[0].to_owned());
    let theirs = endpoint.trim_start_matches("unix://");
    let ours = socket.map_or_else(|| SOCKETS[0].to_owned(), |socket| socket.display().to_string());
    // `/var/run` is a link to `/run`.
    let same = |path: &str| {
        path.strip_prefix("/var/run/").map_or_else(|| path.to_owned(), |rest| format!("/run/{rest}"))
    };
    let found = format!("process {pid} runs one on {theirs}");
    if same(theirs) == same(&ours) {
        Finding::error(what, found, format!("stop it, or {REMEDY}"))
    } else {
        Finding::ok(what, found)
    }
}

fn kubelet_process(machine: &Host) -> Option<u32> {
    let entries = fs::read_dir(machine.path("proc")).ok()?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut kubelets: Vec<u32> = pids
        .filter(|pid| machine.read(&format!("proc/{pid}/comm")).is_ok_and(|name| name.trim() == "kubelet"))
        .collect();
    kubelets.sort_unstable();
    kubelets.first().copied()
}

/// The value of a flag, after `=` or as the next argument.
fn flag<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(name)? {
        "" => words.get(at + 1).copied(),
        rest => rest.strip_prefix('='),
    })
}

/// The endpoint in a kubelet's configuration file.
fn configured_endpoint(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix("containerRuntimeEndpoint:"))?;
    Some(value.trim().trim_matches(['"', '\'']).to_owned()).filter(|value| !value.is_empty())
}
