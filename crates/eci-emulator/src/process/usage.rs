//! What the processes of a container use, as /proc says.

use std::{fs, sync::Arc};

use super::Handle;
use crate::{cloud::Usage, emulator::Emulator};

/// Nanoseconds of a tick of the kernel's clock.
const TICK: u64 = 10_000_000;
const PAGE: u64 = 4096;

/// Reads what a container uses, and keeps it.
pub(super) fn measure(emulator: &Arc<Emulator>, group: u64, index: usize, handle: &Handle) {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = namespace(&handle.pid.to_string()) else { return };
    let Ok(entries) = fs::read_dir("/proc") else { return };
    let (mut ticks, mut pages) = (0, 0);
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        if namespace(pid).as_ref() != Some(&own) {
            continue;
        }
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name, in brackets, may contain anything.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let field = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        ticks += field(11) + field(12) + field(13) + field(14);
        pages += field(21);
    }
    emulator.with_cloud(|cloud| {
        let now = cloud.now();
        let Some(container) = cloud.container_of_run(group, index, handle.run) else { return };
        let before = container.usage;
        let cpu_nanoseconds = (ticks * TICK).max(before.cpu_nanoseconds);
        let passed = before.measured.map_or(0.0, |before| now.duration_since(before).as_secs_f64());
        let used = cpu_nanoseconds - before.cpu_nanoseconds;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rate of this host's processors"
        )]
        let nano_cores = if passed > 0.0 { (used as f64 / passed) as u64 } else { 0 };
        container.usage =
            Usage { cpu_nanoseconds, nano_cores, memory_bytes: pages * PAGE, measured: Some(now) };
    });
}
