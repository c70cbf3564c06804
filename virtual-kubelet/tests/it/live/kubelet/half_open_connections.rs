//! Connections that stay half open; `make e2e-kubectl` opens ten times as many.

use vk_testing::{ControlPlane, Usage, eventually};

use super::Served;
use crate::live::{SOON, slow_clients::SlowClients};

/// Memory limit for a thousand connections. Each has buffers, and after the handshake also keys and a parser.
const MOST: u64 = 48 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_thousand_half_open_connections_take_little_memory_and_nobodys_place() {
    let served = Served::start(ControlPlane::shared().await, "besieged", &[]).await;
    let stage = served.stage().await;
    let usage = || Usage::of(served.process.pid()).unwrap();
    // One-time allocations do not count.
    stage.run_ok(&["exec", "web", "--", "true"]).await;
    let before = usage();
    let mut clients = SlowClients::new(served.cluster.ca_pem(), served.port);
    let (mut most, mut files) = (0, 0);
    for _ in 0..4 {
        clients.grow(250);
        clients.drip();
        (most, files) = (most.max(usage().resident_bytes), files.max(usage().files));
        // Authenticated callers are still served.
        assert_eq!(stage.run_ok(&["exec", "web", "--", "echo", "within"]).await, "within\n");
    }
    assert_eq!(clients.strength(), 1000);
    assert!(files > before.files + 500, "they are really there: {files} files, {} before", before.files);
    assert!(
        most < before.resident_bytes + MOST,
        "{} MiB before, {} at most",
        before.resident_bytes >> 20,
        most >> 20
    );
    drop(clients);
    eventually("nothing of them is left", SOON, || async {
        let now = usage().files;
        if now <= before.files + 10 { Ok(()) } else { Err(format!("{now} files, {} before", before.files)) }
    })
    .await;
    stage.run_ok(&["logs", "web", "--tail=1"]).await;
    stage.close().await;
    served.no_sessions().await;
}
