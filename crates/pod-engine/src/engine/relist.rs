//! The periodic list of the runtime, which is the source of truth. Events only make changes visible sooner: they may be lost, late, or
//! missing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt as _;
use tracing::{debug, info, warn};

use super::context::EngineContext;
use crate::backend::full_message;

/// Divisor for the relist frequency while events are reliable.
const EVENTED_DIVISOR: u32 = 5;
/// The delay before an ended event stream is requested again.
const RECONNECT: Duration = Duration::from_secs(5);

/// Lists the runtime and follows its events, until the engine stops.
pub(super) async fn run(context: Arc<EngineContext>) {
    let flowing = AtomicBool::new(false);
    tokio::select! {
        () = context.supervisor.stopping() => {}
        () = list(&context, &flowing) => {}
        () = follow_events(&context, &flowing) => {}
    }
}

async fn list(context: &Arc<EngineContext>, flowing: &AtomicBool) {
    let node_labels = context.node_labels();
    let mut is_down = false;
    loop {
        match context.backend.list(&node_labels).await {
            Ok(listing) => {
                context.health.record_list();
                // A change without an event: the events are not reliable.
                if context.apply_listing(listing, None) && flowing.swap(false, Ordering::Relaxed) {
                    debug!("the runtime's events missed a change");
                }
                if is_down {
                    info!("the container runtime answers again");
                    is_down = false;
                    // Observe all pods that could not be observed meanwhile.
                    context.pods().iter().for_each(|handle| handle.invalidate());
                }
            }
            Err(error) => {
                context.health.record_failure();
                if !is_down {
                    warn!(
                        error = full_message(&error),
                        "cannot list the container runtime; pods keep their last status"
                    );
                    is_down = true;
                }
            }
        }
        let divisor = if flowing.load(Ordering::Relaxed) { EVENTED_DIVISOR } else { 1 };
        tokio::time::sleep(context.settings.relist * divisor).await;
    }
}

/// Passes the runtime's events to the pods. Never returns if the runtime has none.
async fn follow_events(context: &Arc<EngineContext>, flowing: &AtomicBool) {
    while let Some(mut events) = context.backend.events() {
        while let Some(uid) = events.next().await {
            flowing.store(true, Ordering::Relaxed);
            // Unknown pods belong to others.
            if let Some(handle) = context.pod(&uid) {
                handle.record_runtime_event();
            }
        }
        if flowing.swap(false, Ordering::Relaxed) {
            debug!("the runtime's event stream ended");
        }
        tokio::time::sleep(RECONNECT).await;
    }
    std::future::pending::<()>().await;
}
