//! Whether a process does what the settings expect of it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use vk_kube::Error;
use vk_provider::Finding;

use super::{Doctor, text};
use crate::{
    names::{EXTENDER_CALLED, LEADER_SETTINGS, SERVING_LEASE},
    policy::NAME,
};

/// Clocks may differ by this much.
const CLOCK_SKEW: Duration = Duration::from_secs(10);
/// An extender that was not called for this long is not used.
const CALLED_WITHIN: Duration = Duration::from_hours(2);

/// What the processes and their settings leave in the API server.
#[derive(Debug, Default)]
pub(super) struct ProcessObjects {
    pub(super) settings: Option<Value>,
    /// The Lease of the processes that remove gates and evict pods.
    pub(super) lease: Option<Value>,
    /// The Lease of those that serve the extender or the webhook.
    pub(super) serving_lease: Option<Value>,
}

/// A process that leads.
struct Leader<'a> {
    name: &'a str,
    /// Its settings, as in the configuration file.
    settings: Value,
}

// === impl ProcessObjects ===

impl ProcessObjects {
    pub(super) async fn read(doctor: &Doctor<'_>) -> Result<Self, Error> {
        let namespace = doctor.namespace;
        let map = format!("/api/v1/namespaces/{namespace}/configmaps/{NAME}");
        let lease = |name: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        Ok(Self {
            settings: doctor.find("configmaps", &map).await?,
            lease: doctor.find("leases", &lease(NAME)).await?,
            serving_lease: doctor.find("leases", &lease(SERVING_LEASE)).await?,
        })
    }

    pub(super) fn findings(&self, now: Timestamp, namespace: &str) -> Vec<Finding> {
        let findings = [self.gate_finding(now, namespace)].into_iter();
        findings.chain(self.extender_finding(now, namespace)).collect()
    }

    fn gate_finding(&self, now: Timestamp, namespace: &str) -> Finding {
        let adds_gates = self.settings.as_ref().and_then(|map| text(map, "/data/gate")) == Some("true");
        let Some(leader) = leader(self.lease.as_ref(), now) else {
            let found = format!("no process leads placement (Lease {namespace}/{NAME})");
            return if adds_gates {
                let found =
                    format!("{found}, and pods that opt in get a scheduling gate that nobody removes");
                Finding::error(
                    "process",
                    found,
                    "run `virtual-kubelet placement --gates estimate` or trial, or print the policy with --gates off",
                )
            } else {
                Finding::ok("process", format!("{found}; conversion and the extender need none"))
            };
        };
        let has_gates = !matches!(leader.settings["gates"].as_str(), None | Some("off"));
        match (adds_gates, has_gates) {
            (true, false) => Finding::error(
                "process",
                format!("pods that opt in get a scheduling gate, and {} does not remove it", leader.name),
                "set --gates estimate or trial there, or print the policy with --gates off",
            ),
            (false, true) => Finding::warning(
                "process",
                format!("{} places gated pods, and pods do not get the gate", leader.name),
                "print the policy with --gates estimate or trial, and apply it",
            ),
            _ => Finding::ok(
                "process",
                format!("{} leads, with the settings {}", leader.name, leader.settings),
            ),
        }
    }

    /// `None` if there is no extender, and never was one.
    fn extender_finding(&self, now: Timestamp, namespace: &str) -> Option<Finding> {
        let called = annotation(self.serving_lease.as_ref(), EXTENDER_CALLED);
        let called = called.and_then(|text| text.parse::<Timestamp>().ok());
        let leader = leader(self.serving_lease.as_ref(), now);
        let is_served = leader.as_ref().is_some_and(|leader| leader.settings["extender"].is_object());
        let found = match called {
            None if !is_served => return None,
            Some(called) if !is_served => {
                let found = format!(
                    "a scheduler has called it since {called}, and no process serves it now (Lease {namespace}/{SERVING_LEASE})"
                );
                let remedy = "run `virtual-kubelet placement --extender-listen :8443`, or take the extender out of the scheduler's configuration";
                return Some(Finding::warning("extender", found, remedy));
            }
            Some(called) if now.duration_since(called) < CALLED_WITHIN.try_into().unwrap_or_default() => {
                return Some(Finding::ok("extender", format!("a scheduler has called it since {called}")));
            }
            Some(called) => format!("no scheduler has called it since {called}"),
            None => "no scheduler has called it yet".to_owned(),
        };
        let remedy = "give a kube-scheduler the output of `virtual-kubelet placement print scheduler`, and check that it reaches the address";
        Some(Finding::warning("extender", found, remedy))
    }
}

/// The leader, if its lease has not expired.
fn leader(lease: Option<&Value>, now: Timestamp) -> Option<Leader<'_>> {
    let settings = annotation(lease, LEADER_SETTINGS).and_then(|text| serde_json::from_str(text).ok());
    let lease = lease?;
    let name = text(lease, "/spec/holderIdentity").filter(|name| !name.is_empty())?;
    let renewed: Timestamp = text(lease, "/spec/renewTime")?.parse().ok()?;
    let seconds = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or_default();
    let expires = renewed.checked_add(Duration::from_secs(seconds) + CLOCK_SKEW).ok()?;
    (now < expires).then(|| Leader { name, settings: settings.unwrap_or_default() })
}

fn annotation<'a>(lease: Option<&'a Value>, key: &str) -> Option<&'a str> {
    lease?["metadata"]["annotations"][key].as_str()
}
