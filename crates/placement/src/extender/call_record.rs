//! Records in the Lease that schedulers call, so that `doctor` finds an extender that nobody calls.

use std::time::Duration;

use jiff::{Timestamp, Unit};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use tracing::debug;
use vk_kube::{Client, Error, Objects, Patch};
use vk_supervisor::Clock;

use super::Extender;
use crate::names::{EXTENDER_CALLED, SERVING_LEASE};

/// Calls are counted as one for this long.
const PERIOD: Duration = Duration::from_mins(1);

impl Extender {
    /// Records calls, at most one write an hour of all processes together. Runs forever. Cancel-safe. The client has no fence: whoever was called
    /// records it.
    pub async fn record_calls(self, client: Client, namespace: String, clock: Clock) {
        let leases = Objects::<Lease>::namespaced(client, &namespace);
        let mut called = self.0.called.subscribe();
        let mut recorded = None;
        while called.changed().await.is_ok() {
            let hour = hour(clock.now());
            if recorded != Some(hour) {
                match record(&leases, hour).await {
                    Ok(()) => recorded = Some(hour),
                    // The process that elects a leader creates the Lease.
                    Err(error) => debug!(%error, "cannot record that a scheduler calls the extender"),
                }
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
}

/// Records a call, unless another process has done it.
async fn record(leases: &Objects<Lease>, hour: Timestamp) -> Result<(), Error> {
    let hour = hour.to_string();
    let annotations = leases.get(SERVING_LEASE).await?.metadata.annotations.unwrap_or_default();
    if annotations.get(EXTENDER_CALLED) != Some(&hour) {
        let patch = json!({"metadata": {"annotations": {EXTENDER_CALLED: hour}}});
        leases.patch(SERVING_LEASE, Patch::Merge(&patch)).await?;
    }
    Ok(())
}

/// The time to the hour.
fn hour(time: Timestamp) -> Timestamp {
    let begin = jiff::TimestampRound::new().smallest(Unit::Hour).mode(jiff::RoundMode::Trunc);
    time.round(begin).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_of_an_hour_are_recorded_as_its_begin() {
        let at = |text: &str| hour(text.parse().unwrap()).to_string();
        assert_eq!(at("2026-01-01T11:00:00Z"), "2026-01-01T11:00:00Z");
        assert_eq!(at("2026-01-01T11:59:59.999Z"), "2026-01-01T11:00:00Z");
    }
}
