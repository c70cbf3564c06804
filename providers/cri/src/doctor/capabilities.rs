//! Checks the capabilities of the runtime. If it is confined itself, containers fail with errors that do not name the cause.

use vk_pod_engine::host::{CAP_SYS_RESOURCE, Host};
use vk_provider::Finding;

use super::RuntimeInfo;

/// Required to mount.
const CAP_SYS_ADMIN: u32 = 21;

pub(super) fn examine(info: &RuntimeInfo, machine: &Host) -> Vec<Finding> {
    // The runtime's capabilities count. If its process is not visible, ours are the best guess.
    let (whose, capable) =
        match info.pid.and_then(|pid| machine.process_has_capability(pid, CAP_SYS_RESOURCE)) {
            Some(capable) => ("the runtime", Some(capable)),
            None => ("this process", machine.has_capability(CAP_SYS_RESOURCE)),
        };
    let mut findings = vec![oom(info, whose, capable), limits(whose, capable)];
    if machine.has_capability(CAP_SYS_ADMIN) == Some(false) {
        findings.push(Finding::error(
            "mounts",
            "this process lacks CAP_SYS_ADMIN, which volumes in memory need",
            "run virtual-kubelet as root, with CAP_SYS_ADMIN",
        ));
    }
    findings
}

fn oom(info: &RuntimeInfo, whose: &str, capable: Option<bool>) -> Finding {
    let what = "OOM scores";
    let restricts = info.config.get("restrictOOMScoreAdj").and_then(serde_json::Value::as_bool);
    match (capable, restricts) {
        (Some(true), _) => Finding::ok(what, format!("{whose} may lower them")),
        (_, Some(true)) => Finding::ok(what, "they are not lowered (restrict_oom_score_adj)"),
        (None, _) => Finding::warning(
            what,
            "the capabilities of the runtime cannot be read",
            "run this as root on the runtime's machine",
        ),
        // CRI-O checks its capabilities first.
        (Some(false), _) if info.name == "cri-o" => {
            Finding::ok(what, format!("{whose} may not lower them, which CRI-O takes into account"))
        }
        (Some(false), _) => Finding::error(
            what,
            format!(
                "{whose} lacks CAP_SYS_RESOURCE, and containerd lowers the score of every sandbox: no pod can start"
            ),
            "set `restrict_oom_score_adj = true` in the cri plugin's section of /etc/containerd/config.toml and restart \
             containerd, or give it CAP_SYS_RESOURCE",
        ),
    }
}

fn limits(whose: &str, capable: Option<bool>) -> Finding {
    let what = "resource limits";
    match capable {
        Some(true) => Finding::ok(what, format!("{whose} may raise them")),
        Some(false) => Finding::warning(
            what,
            format!("{whose} lacks CAP_SYS_RESOURCE: images that raise their limits (ulimit) fail"),
            "give the runtime CAP_SYS_RESOURCE",
        ),
        None => Finding::warning(
            what,
            "the capabilities of the runtime cannot be read",
            "run this as root on the runtime's machine",
        ),
    }
}
