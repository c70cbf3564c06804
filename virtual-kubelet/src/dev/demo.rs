//! The demo pods: a Deployment with probes and a volume, and a Job, with an image of the machine's busybox.

use std::{net::TcpListener, path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tokio::{task::spawn_blocking, time::Instant};
use vk_control_plane::kubectl;
use vk_provider::Config;
use vk_provider_local::{
    config::Settings,
    demo::{NAME, archive, busybox},
    image::{self, Store},
};
use vk_supervisor::Supervisor;

use super::{DevEnvironment, indented, print, seconds, write_private_file};
use crate::{
    config::EffectiveConfig,
    run::{address, context},
};

/// The provider that runs the demo.
const PROVIDER: &str = "local";
/// Port of pods with their own network.
const PORT: u16 = 8080;
/// Time limit for the pods.
const LIMIT: &str = "60s";

const MANIFEST: &str = include_str!("demo.yaml");

/// The prepared demo.
#[derive(Debug)]
pub(super) struct Demo {
    /// Why the image is not available.
    missing: Option<anyhow::Error>,
    /// The nodes' state directory, for importing images.
    state_dir: PathBuf,
}

/// Parameters of the demo pods, depending on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DemoShape {
    replicas: u16,
    port: u16,
}

/// Lowers the limit of free disk space, because the demo needs hardly any.
pub(super) fn lower_disk_limit(mut config: EffectiveConfig) -> EffectiveConfig {
    for node in config.nodes.iter_mut().filter(|node| node.provider == PROVIDER) {
        // An invalid configuration is kept, so that the error names its source.
        if Settings::read(&node.provider_config).is_ok_and(|settings| settings.min_free_disk.is_none()) {
            let mut written = node.provider_config.parse::<Value>().ok().flatten().unwrap_or_default();
            written["minFreeDisk"] = json!("256Mi");
            node.provider_config = Config::Inline(written);
        }
    }
    config
}

/// Builds the image if there are nodes for it. Errors are reported later, because the nodes can start without it.
pub(super) async fn prepare(config: &EffectiveConfig) -> Option<Demo> {
    let node = config.nodes.iter().find(|node| node.provider == PROVIDER)?;
    // The node reports an invalid configuration.
    let settings = Settings::read(&node.provider_config).ok()?;
    let context = context(node, address::internal_ip(""), &config.state_dir, Supervisor::new());
    let directory = settings.images(&context);
    let imported = spawn_blocking(move || -> anyhow::Result<()> {
        let program = busybox()?;
        let bytes = archive(&program).with_context(|| format!("build an image of {}", program.display()))?;
        let store = Store::open(&directory, image::Settings::default())?;
        store.import(bytes.as_slice(), &[]).context("import the image")?;
        Ok(())
    });
    let missing = imported.await.map_err(anyhow::Error::from).and_then(|imported| imported).err();
    Some(Demo { missing, state_dir: config.state_dir.clone() })
}

// === impl Demo ===

impl Demo {
    /// Starts the pods and prints them. Returns further commands to try.
    pub(super) async fn show(&self, environment: &DevEnvironment<'_>) -> anyhow::Result<String> {
        if let Some(why) = &self.missing {
            print(&format!("\nNo demo pods: {why:#}."))?;
            return Ok(self.hints(None));
        }
        let nodes = kubectl(environment.cluster, ["get", "nodes", "-o", "json"]).await?;
        let nodes = serde_json::from_str(&nodes.stdout).unwrap_or_default();
        if let Some(message) = isolation_warning(&nodes) {
            print(&format!("\nNO CONTAINERS HERE: {message}."))?;
        }
        let shape = DemoShape::on(&nodes)?;
        let file = environment.cluster.data_dir().join("demo.yaml");
        write_private_file(&file, &shape.manifest()).with_context(|| format!("write {}", file.display()))?;
        let begin = Instant::now();
        print(
            "\nA ConfigMap, a Deployment with probes and a Job; the image is this machine's busybox, nothing is pulled:",
        )?;
        environment.kubectl(&["apply", "-f", &file.display().to_string()]).await?;
        let limit = format!("--timeout={LIMIT}");
        let (rolled, done) = tokio::try_join!(
            kubectl(environment.cluster, ["rollout", "status", "deployment/hello", &limit]),
            kubectl(environment.cluster, ["wait", "--for=condition=complete", "job/once", &limit]),
        )?;
        let took = begin.elapsed();
        environment.kubectl(&["get", "pods", "-o", "wide"]).await?;
        if !rolled.success() || !done.success() {
            environment.kubectl(&["get", "events"]).await?;
            print(&format!("\nThe pods are not ready after {LIMIT}; see the events and the log."))?;
            return Ok(self.hints(Some(shape)));
        }
        print_timing(took, environment.begin.elapsed())?;
        environment.kubectl(&["logs", "job/once"]).await?;
        environment.kubectl(&["logs", "deployment/hello", "--tail=1"]).await?;
        let address = format!("http://127.0.0.1:{}", shape.port);
        environment.kubectl(&["exec", "deployment/hello", "--", "wget", "-q", "-O", "-", &address]).await?;
        Ok(self.hints(Some(shape)))
    }

    /// Commands to try, with and without running pods.
    pub(super) fn hints(&self, shape: Option<DemoShape>) -> String {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("virtual-kubelet"));
        let mut hints = vec!["kubectl get pods -o wide".to_owned()];
        if let Some(shape) = shape {
            hints.push("kubectl logs deployment/hello --follow".to_owned());
            hints.push("kubectl exec -it deployment/hello -- sh".to_owned());
            hints.push(format!("kubectl port-forward deployment/hello 8080:{}", shape.port));
            // A port can only be used once.
            if shape.replicas > 1 {
                hints.push("kubectl scale deployment hello --replicas=5".to_owned());
            }
        }
        if self.missing.is_none() {
            hints.push(format!("kubectl run shell --rm -it --image={NAME} -- sh"));
        }
        let (program, state_dir) = (program.display(), self.state_dir.display());
        hints.push(format!("{program} image import FILE.tar --state-dir {state_dir}"));
        indented(&hints)
    }
}

/// The message of a node whose pods are not isolated.
fn isolation_warning(nodes: &Value) -> Option<&str> {
    let nodes = nodes["items"].as_array()?;
    let mut conditions = nodes.iter().filter_map(|node| node["status"]["conditions"].as_array()).flatten();
    let found =
        conditions.find(|known| known["type"] == "virtual-kubelet.io/Isolated" && known["status"] == "False");
    found?["message"].as_str()
}

fn print_timing(took: Duration, since_start: Duration) -> anyhow::Result<()> {
    print(&format!(
        "\nRunning {} after they were created, {} after the start.",
        seconds(took),
        seconds(since_start)
    ))
}

// === impl DemoShape ===

impl DemoShape {
    /// Two replicas if pods have their own network; with the host's network one replica on a free port.
    fn on(nodes: &Value) -> anyhow::Result<Self> {
        let nodes = nodes["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let bridged = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions
                .any(|known| known["type"] == "virtual-kubelet.io/PodNetwork" && known["status"] == "True")
        };
        if !nodes.is_empty() && nodes.iter().all(bridged) {
            return Ok(Self { replicas: 2, port: PORT });
        }
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = free.map_err(|error| anyhow!("cannot find a free port: {error}"))?.port();
        Ok(Self { replicas: 1, port })
    }

    fn manifest(self) -> String {
        MANIFEST
            .replace("{image}", NAME)
            .replace("{replicas}", &self.replicas.to_string())
            .replace("{port}", &self.port.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(status: &str) -> Value {
        json!({ "status": { "conditions": [{ "type": "virtual-kubelet.io/PodNetwork", "status": status }] } })
    }

    #[test]
    fn host_network_nodes_get_one_replica() {
        let bridged = DemoShape::on(&json!({ "items": [node("True"), node("True")] })).unwrap();
        assert_eq!(bridged, DemoShape { replicas: 2, port: PORT });
        for nodes in [json!({ "items": [node("True"), node("False")] }), json!({ "items": [] }), json!(null)]
        {
            let shape = DemoShape::on(&nodes).unwrap();
            assert!(shape.replicas == 1 && shape.port != 0, "{shape:?}");
        }
    }

    #[test]
    fn a_node_without_isolation_has_a_warning() {
        let node = |status: &str| {
            json!({ "items": [{ "status": { "conditions": [
                { "type": "virtual-kubelet.io/Isolated", "status": status, "message": "plain" },
            ] } }] })
        };
        assert_eq!(isolation_warning(&node("False")), Some("plain"));
        assert_eq!(isolation_warning(&node("True")), None);
    }

    #[test]
    fn the_manifest_is_complete() {
        let text = DemoShape { replicas: 2, port: 8123 }.manifest();
        let kinds: Vec<Value> = text
            .split("\n---\n")
            .map(|part| serde_saphyr::from_str::<Value>(part).unwrap()["kind"].clone())
            .collect();
        assert_eq!(kinds, ["ConfigMap", "Deployment", "Job"]);
        assert!(text.contains(NAME) && text.contains("port: 8123}") && !text.contains("{port}"), "{text}");
    }
}
