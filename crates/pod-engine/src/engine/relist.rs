//! The truth about what runs: the runtime's list, every second. Events are a hint that something is to be looked at sooner, and no more,
//! because they may be lost, late, or never come.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt as _;
use tracing::{debug, info, warn};

use super::shared::Shared;
use crate::backend::told;

/// How many times seldomer the runtime is listed while its events are as good as its list.
const TRUST: u32 = 5;
/// How long to wait before events that ended are asked for again.
const AGAIN: Duration = Duration::from_secs(5);

/// Lists the runtime and listens to its events, until the engine ends.
pub(super) async fn run(shared: Arc<Shared>) {
    let flowing = AtomicBool::new(false);
    tokio::select! {
        () = shared.supervisor.stopping() => {}
        () = list(&shared, &flowing) => {}
        () = listen(&shared, &flowing) => {}
    }
}

async fn list(shared: &Arc<Shared>, flowing: &AtomicBool) {
    let mark = shared.mark();
    let mut away = false;
    loop {
        match shared.backend.list(&mark).await {
            Ok(listing) => {
                shared.health.listed();
                // What changed and was not told of: the events cannot be relied on.
                if shared.compare(listing, None) && flowing.swap(false, Ordering::Relaxed) {
                    debug!("the runtime's events have missed something");
                }
                if away {
                    info!("the container runtime is listed again");
                    away = false;
                    // What could not be looked at meanwhile is looked at now.
                    shared.slots().iter().for_each(|slot| slot.touch());
                }
            }
            Err(error) => {
                shared.health.doubt();
                if !away {
                    warn!(
                        error = told(&error),
                        "cannot list the container runtime: pods are kept as they were"
                    );
                    away = true;
                }
            }
        }
        let trusted = if flowing.load(Ordering::Relaxed) { TRUST } else { 1 };
        tokio::time::sleep(shared.settings.relist * trusted).await;
    }
}

/// Passes the runtime's events on to the pods. Waits for ever where it has none.
async fn listen(shared: &Arc<Shared>, flowing: &AtomicBool) {
    while let Some(mut events) = shared.backend.events() {
        while let Some(uid) = events.next().await {
            flowing.store(true, Ordering::Relaxed);
            // Of pods that are not known here something may run, but nothing of ours.
            if let Some(slot) = shared.slot(&uid) {
                slot.hint();
            }
        }
        if flowing.swap(false, Ordering::Relaxed) {
            debug!("the runtime's events have ended");
        }
        tokio::time::sleep(AGAIN).await;
    }
    std::future::pending::<()>().await;
}
