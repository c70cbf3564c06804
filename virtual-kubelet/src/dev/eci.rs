//! Nodes on ECI without an account: an emulator on loopback, whose containers are processes of this host.

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use vk_control_plane::kubectl;
use vk_eci_emulator::{AccessKey, Containers, EciEmulator, Options, Settings};

use super::{DevEnvironment, indented, print, write_private_file};
use crate::config::EffectiveConfig;

/// The provider that the emulator is for.
const PROVIDER: &str = "eci";
/// Keys that say which cloud, or as whom. With one of them it is the real one.
const KEYS_OF_A_CLOUD: [&str; 6] =
    ["accessKey", "credentials", "endpoint", "profile", "roleName", "secretKey"];
/// Variables that give credentials.
const VARIABLES: [&str; 2] = ["ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ROLE_ARN"];
/// Time limit for the pods.
const LIMIT: &str = "--timeout=60s";

const MANIFEST: &str = include_str!("eci.yaml");

/// The emulator of the nodes.
pub(super) struct Emulated {
    /// It ends with this.
    _server: EciEmulator,
    endpoint: String,
    containers: Containers,
}

/// Starts an emulator if there are nodes on ECI with neither an endpoint nor credentials, and tells these nodes.
pub(super) async fn start(config: &mut EffectiveConfig) -> anyhow::Result<Option<Emulated>> {
    let has_credentials = VARIABLES.iter().any(|name| std::env::var_os(name).is_some());
    let mut nodes = Vec::new();
    for (index, node) in config.nodes.iter().enumerate().filter(|(_, node)| node.provider == PROVIDER) {
        // The node reports an invalid configuration.
        let keys = node.provider_config.parse::<Map<String, Value>>().ok().map(Option::unwrap_or_default);
        let is_emulated =
            |keys: &Map<String, Value>| !KEYS_OF_A_CLOUD.iter().any(|key| keys.contains_key(*key));
        if let Some(keys) = keys.filter(|keys| is_emulated(keys) && !has_credentials) {
            nodes.push((index, keys));
        }
    }
    let Some((_, first)) = nodes.first() else { return Ok(None) };
    let containers = Containers::of_this_host();
    let secret = format!("{:032x}", rand::random::<u128>());
    let server = EciEmulator::start(Options {
        keys: [("emulated".to_owned(), AccessKey::new(&secret))].into(),
        settings: settings(first, nodes.iter().map(|(_, keys)| keys)),
        containers,
        folder: Some(config.state_dir.join("eci-emulator")),
        ..Options::new()
    });
    let server = server.await.context("start the emulator of ECI")?;
    let endpoint = server.endpoint();
    for (index, keys) in nodes {
        let mut added = Map::new();
        let defaults = [
            ("region", json!("cn-hangzhou")),
            ("vSwitches", json!(["vsw-a", "vsw-b"])),
            ("securityGroup", json!("sg-1")),
            ("clusterName", json!("dev")),
            ("prices", json!("cloud")),
        ];
        added.extend(
            defaults
                .into_iter()
                .filter(|(key, _)| !keys.contains_key(*key))
                .map(|(key, value)| (key.to_owned(), value)),
        );
        added.insert("endpoint".to_owned(), endpoint.clone().into());
        added.insert("accessKey".to_owned(), "emulated".into());
        added.insert("secretKey".to_owned(), secret.clone().into());
        added.insert("credentials".to_owned(), "static".into());
        let node = &mut config.nodes[index];
        node.provider_config = std::mem::take(&mut node.provider_config).with(added);
    }
    Ok(Some(Emulated { _server: server, endpoint, containers }))
}

/// A cloud that has what the nodes name.
fn settings<'a>(first: &Map<String, Value>, nodes: impl Iterator<Item = &'a Map<String, Value>>) -> Settings {
    let mut settings = Settings::default();
    if let Some(region) = first.get("region").and_then(Value::as_str) {
        region.clone_into(&mut settings.region);
    }
    let region = settings.region.clone();
    let zones = ["a", "b", "c"].iter().cycle().map(|letter| format!("{region}-{letter}"));
    settings.v_switches =
        ["vsw-a", "vsw-b", "vsw-c"].map(str::to_owned).into_iter().zip(zones.clone()).collect();
    for keys in nodes {
        let named = keys.get("vSwitches").and_then(Value::as_array).into_iter().flatten();
        let named = named.filter_map(Value::as_str).map(str::to_owned);
        settings.v_switches.extend(named.zip(zones.clone()));
        let groups = keys.get("securityGroup").and_then(Value::as_str).unwrap_or_default();
        settings.security_groups.extend(groups.split(',').map(|name| name.trim().to_owned()));
    }
    settings
}

// === impl Emulated ===

impl Emulated {
    /// Says what runs here, and starts the demo pods.
    pub(super) async fn show(&self, environment: &DevEnvironment<'_>) -> anyhow::Result<String> {
        let what = match self.containers {
            Containers::Processes => {
                "its containers are processes of this host with its busybox, whatever their image is"
            }
            Containers::Simulated => {
                "its containers are simulated, because processes need root, /bin/busybox and util-linux"
            }
        };
        print(&format!("\nAn emulator of ECI is at {}: {what}. Nothing is billed.", self.endpoint))?;
        if environment.wanted {
            let file = environment.cluster.data_dir().join("eci.yaml");
            write_private_file(&file, MANIFEST).with_context(|| format!("write {}", file.display()))?;
            environment.kubectl(&["apply", "-f", &file.display().to_string()]).await?;
            let (rolled, done) = tokio::try_join!(
                kubectl(environment.cluster, ["rollout", "status", "deployment/hello", LIMIT]),
                kubectl(environment.cluster, ["wait", "--for=condition=complete", "job/once", LIMIT]),
            )?;
            environment.kubectl(&["get", "pods", "-o", "wide"]).await?;
            if rolled.success() && done.success() {
                environment.kubectl(&["logs", "job/once"]).await?;
                environment.kubectl(&["exec", "deployment/hello", "--", "cat", "/www/index.html"]).await?;
                let columns = "custom-columns=NAME:.metadata.name,\
                               SIZE:.metadata.annotations.virtual-kubelet\\.io/size,\
                               PRICE:.metadata.annotations.virtual-kubelet\\.io/price";
                environment.kubectl(&["get", "pods", "-o", columns]).await?;
            } else {
                environment.kubectl(&["get", "events"]).await?;
                print("\nThe pods are not ready; see the events and the log.")?;
            }
        }
        Ok(indented(&[
            "kubectl get pods -o wide",
            "kubectl describe pod -l app=hello",
            "kubectl logs deployment/hello --follow",
            "kubectl exec -it deployment/hello -- sh",
            "kubectl scale deployment hello --replicas=5",
        ]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cloud_has_what_the_nodes_name() {
        let keys = |value: Value| value.as_object().cloned().unwrap();
        let one = keys(
            json!({"region": "cn-beijing", "vSwitches": ["vsw-x", "vsw-y"], "securityGroup": "sg-x, sg-y"}),
        );
        let two = keys(json!({"vSwitches": ["vsw-z"]}));
        let settings = settings(&one, [&one, &two].into_iter());
        assert_eq!(settings.region, "cn-beijing");
        assert_eq!(settings.v_switches["vsw-y"], "cn-beijing-b");
        assert!(settings.v_switches.contains_key("vsw-z") && settings.v_switches.contains_key("vsw-a"));
        assert!(settings.security_groups.contains("sg-x") && settings.security_groups.contains("sg-y"));
    }

    #[test]
    fn the_manifest_is_complete() {
        let kinds: Vec<Value> = MANIFEST
            .split("\n---\n")
            .map(|part| serde_saphyr::from_str::<Value>(part).unwrap()["kind"].clone())
            .collect();
        assert_eq!(kinds, ["ConfigMap", "Deployment", "Job"]);
    }
}
