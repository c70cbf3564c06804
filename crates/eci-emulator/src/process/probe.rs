//! Liveness and readiness probes.

use std::{sync::Arc, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use super::{
    Handle,
    command::{Weak, processes},
    container::Start,
    hook, stop,
};
use crate::emulator::Emulator;

/// Asks again and again, until the container is gone.
pub(super) async fn run(emulator: Weak, start: Arc<Start>, handle: Handle, is_liveness: bool) {
    let probe = &start.spec[if is_liveness { "LivenessProbe" } else { "ReadinessProbe" }];
    let number = |name: &str, default: u64| probe[name].as_u64().unwrap_or(default);
    let seconds = |name: &str, default: u64| Duration::from_secs(number(name, default));
    let limit = seconds("TimeoutSeconds", 1);
    tokio::time::sleep(seconds("InitialDelaySeconds", 0)).await;
    let (mut successes, mut failures) = (0, 0);
    loop {
        let Some(emulator) = emulator.upgrade() else { return };
        match ask(&emulator, &handle, probe, limit).await {
            Ok(()) => (successes, failures) = (successes + 1, 0),
            Err(error) => {
                (successes, failures) = (0, failures + 1);
                let kind = if is_liveness { "Liveness" } else { "Readiness" };
                emulator.with_cloud(|cloud| {
                    let now = cloud.now();
                    if let Some(group) = cloud.group_mut(start.group) {
                        group.push_event(now, "Unhealthy", &format!("{kind} probe failed: {error}"));
                    }
                });
            }
        }
        if is_liveness && failures >= number("FailureThreshold", 3) {
            stop::signal(handle.pid, Signal::KILL);
            return;
        }
        if !is_liveness {
            if successes >= number("SuccessThreshold", 1) {
                emulator.with_cloud(|cloud| cloud.set_ready(start.group, start.container, start.run, true));
            } else if failures >= number("FailureThreshold", 3) {
                emulator.with_cloud(|cloud| cloud.set_ready(start.group, start.container, start.run, false));
            }
        }
        drop(emulator);
        tokio::time::sleep(seconds("PeriodSeconds", 10)).await;
    }
}

async fn ask(
    emulator: &Arc<Emulator>,
    handle: &Handle,
    probe: &Value,
    limit: Duration,
) -> Result<(), String> {
    if let Some(command) = hook::words(&probe["Exec"]["Command"]) {
        return processes(emulator).run_in(handle, &command, limit).await;
    }
    if let Some(port) = hook::port(&probe["HttpGet"]["Port"]) {
        let path = probe["HttpGet"]["Path"].as_str().unwrap_or("/");
        return hook::http_get("127.0.0.1", port, path, limit).await;
    }
    match hook::port(&probe["TcpSocket"]["Port"]) {
        Some(port) => hook::connect("127.0.0.1", port, limit).await.map(drop),
        None => Err("the probe asks for nothing".to_owned()),
    }
}
