//! The configuration of a kube-scheduler that asks the [`extender`](crate::extender).

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::policy;

/// The name of a second kube-scheduler, for the pods that name it.
pub const MULTICLUSTER: &str = "multicluster";

/// The scheduler that every cluster has. It has a Lease already.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
const CONFIG: &str = include_str!("scheduler_config/scheduler.yaml");
const LEADER_ELECTION: &str = include_str!("scheduler_config/leader_election.yaml");

/// A KubeSchedulerConfiguration, shown as YAML.
#[derive(Clone, Copy)]
pub struct SchedulerConfig<'a> {
    /// The name of the scheduler: `schedulerName` of its pods.
    pub name: &'a str,
    /// Where the extender is: `https://host:port`.
    pub url: &'a str,
    /// The weight of the extender's scores, 1 or more.
    pub weight: u32,
    /// The CAs of the extender's certificate, in PEM.
    pub ca_pem: &'a str,
    /// The certificate with which the scheduler calls the extender, in PEM.
    pub certificate_pem: &'a str,
    /// The key of that certificate, in PEM.
    pub key_pem: &'a str,
}

impl fmt::Display for SchedulerConfig<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = [("name", self.name.to_owned())];
        let leader_election = if self.name == DEFAULT_SCHEDULER {
            String::new()
        } else {
            policy::render(LEADER_ELECTION, &name)
        };
        let [name] = name;
        let values = [
            ("leader-election", leader_election),
            name,
            ("url", self.url.to_owned()),
            ("weight", self.weight.to_string()),
            ("ca", STANDARD.encode(self.ca_pem)),
            ("certificate", STANDARD.encode(self.certificate_pem)),
            ("key", STANDARD.encode(self.key_pem)),
        ];
        f.write_str(&policy::render(CONFIG, &values))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PUBLISHED: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/placement/scheduler-configuration.yaml");
    const URL: &str = "https://virtual-kubelet-placement.kube-system.svc:8443";

    fn config(name: &str) -> Value {
        let config = SchedulerConfig {
            name,
            url: "https://10.0.0.1:8443",
            weight: 7,
            ca_pem: "CA",
            certificate_pem: "C",
            key_pem: "K",
        };
        serde_saphyr::from_str(&config.to_string()).unwrap()
    }

    #[test]
    fn a_second_scheduler_has_a_lease_of_its_own() {
        let config = config(MULTICLUSTER);
        let lease =
            json!({"leaderElect": true, "resourceNamespace": "kube-system", "resourceName": "multicluster"});
        assert_eq!(config["leaderElection"], lease);
        assert_eq!(config["profiles"], json!([{"schedulerName": "multicluster"}]));
    }

    #[test]
    fn the_scheduler_of_the_cluster_keeps_its_lease() {
        let config = config(DEFAULT_SCHEDULER);
        assert_eq!(config["leaderElection"], Value::Null);
        assert_eq!(config["profiles"], json!([{"schedulerName": "default-scheduler"}]));
    }

    #[test]
    fn the_extender_is_verified_and_may_be_down() {
        let extender = json!({
            "urlPrefix": "https://10.0.0.1:8443",
            "filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt",
            "weight": 7, "nodeCacheCapable": true, "ignorable": true, "httpTimeout": "1s",
            "enableHTTPS": true, "tlsConfig": {"caData": "Q0E=", "certData": "Qw==", "keyData": "Sw=="},
        });
        assert_eq!(config(MULTICLUSTER)["extenders"], json!([extender]));
    }

    #[test]
    fn the_published_configuration_is_current() {
        let config = SchedulerConfig {
            name: MULTICLUSTER,
            url: URL,
            weight: 1,
            ca_pem: "",
            certificate_pem: "",
            key_pem: "",
        };
        // Without a CA, kube-scheduler would verify nothing; with this one it does not start.
        let printed = config
            .to_string()
            .replace(
                "caData: \"\"",
                "caData: the CA of your cluster, as `placement print scheduler` prints it",
            )
            .replace("certData: \"\"", "certData: a certificate of that CA, printed there as well")
            .replace("keyData: \"\"", "keyData: its key, printed there as well");
        let published = std::fs::read_to_string(PUBLISHED).unwrap();
        assert_eq!(
            published, printed,
            "deploy/placement/scheduler-configuration.yaml is out of date: write the output of `virtual-kubelet placement print scheduler` to it"
        );
    }
}
