//! Pods to look at: a Deployment with probes and a volume, and a Job, from an image of the machine's own busybox.

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

use super::{Stage, indented, private, say, seconds};
use crate::{
    config::Resolved,
    run::{address, context},
};

/// The provider whose nodes run it.
const PROVIDER: &str = "local";
/// The port of pods that have a network of their own.
const PORT: u16 = 8080;
/// How long the pods may take.
const LIMIT: &str = "60s";

const MANIFEST: &str = include_str!("demo.yaml");

/// The demonstration, ready to be shown.
#[derive(Debug)]
pub(super) struct Demo {
    /// Why there is none.
    missing: Option<anyhow::Error>,
    /// The nodes' state directory, for those who want to import images.
    state_dir: PathBuf,
}

/// How the pods are to be, on the nodes that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    replicas: u16,
    port: u16,
}

/// A disk that is fuller than a kubelet likes is no reason to show nothing: the pods need hardly any of it.
pub(super) fn modest(mut config: Resolved) -> Resolved {
    for node in config.nodes.iter_mut().filter(|node| node.provider == PROVIDER) {
        // One that is wrong stays as it is, and is told with the place where it was written.
        if Settings::read(&node.provider_config).is_ok_and(|settings| settings.min_free_disk.is_none()) {
            let mut written = node.provider_config.parse::<Value>().ok().flatten().unwrap_or_default();
            written["minFreeDisk"] = json!("256Mi");
            node.provider_config = Config::Inline(written);
        }
    }
    config
}

/// Makes the image, where there are nodes for it. What goes wrong is told later: the nodes come up without it.
pub(super) async fn prepare(config: &Resolved) -> Option<Demo> {
    let node = config.nodes.iter().find(|node| node.provider == PROVIDER)?;
    // A configuration that is wrong is told by the node itself.
    let settings = Settings::read(&node.provider_config).ok()?;
    let directory = settings.images(&context(node, address::internal_ip(""), &config.state_dir));
    let imported = spawn_blocking(move || -> anyhow::Result<()> {
        let program = busybox()?;
        let bytes =
            archive(&program).with_context(|| format!("cannot make an image of {}", program.display()))?;
        let store = Store::open(&directory, image::Settings::default())?;
        store.import(bytes.as_slice(), &[]).context("cannot import the image")?;
        Ok(())
    });
    let missing = imported.await.map_err(anyhow::Error::from).and_then(|imported| imported).err();
    Some(Demo { missing, state_dir: config.state_dir.clone() })
}

// === impl Demo ===

impl Demo {
    /// Brings the pods up and shows them. Answers with what else can be tried.
    pub(super) async fn show(&self, stage: &Stage<'_>) -> anyhow::Result<String> {
        if let Some(why) = &self.missing {
            say(&format!("\nNo pods to look at: {why:#}."))?;
            return Ok(self.hints(None));
        }
        let nodes = kubectl(stage.cluster, ["get", "nodes", "-o", "json"]).await?;
        let nodes = serde_json::from_str(&nodes.stdout).unwrap_or_default();
        if let Some(message) = unguarded(&nodes) {
            say(&format!("\nNO CONTAINERS HERE: {message}."))?;
        }
        let shape = Shape::on(&nodes)?;
        let file = stage.cluster.data_dir().join("demo.yaml");
        private(&file, &shape.manifest()).with_context(|| format!("cannot write {}", file.display()))?;
        let begin = Instant::now();
        say(
            "\nA ConfigMap, a Deployment with probes and a Job; the image is this machine's busybox, nothing is pulled:",
        )?;
        stage.kubectl(&["apply", "-f", &file.display().to_string()]).await?;
        let limit = format!("--timeout={LIMIT}");
        let (rolled, done) = tokio::try_join!(
            kubectl(stage.cluster, ["rollout", "status", "deployment/hello", &limit]),
            kubectl(stage.cluster, ["wait", "--for=condition=complete", "job/once", &limit]),
        )?;
        let took = begin.elapsed();
        stage.kubectl(&["get", "pods", "-o", "wide"]).await?;
        if !rolled.success() || !done.success() {
            stage.kubectl(&["get", "events"]).await?;
            say(&format!("\nThe pods are not there after {LIMIT}: the events and the log say why."))?;
            return Ok(self.hints(Some(shape)));
        }
        told(took, stage.begin.elapsed())?;
        stage.kubectl(&["logs", "job/once"]).await?;
        stage.kubectl(&["logs", "deployment/hello", "--tail=1"]).await?;
        let address = format!("http://127.0.0.1:{}", shape.port);
        stage.kubectl(&["exec", "deployment/hello", "--", "wget", "-q", "-O", "-", &address]).await?;
        Ok(self.hints(Some(shape)))
    }

    /// What can be tried: with the pods that are there, and without.
    pub(super) fn hints(&self, shape: Option<Shape>) -> String {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("virtual-kubelet"));
        let mut hints = vec!["kubectl get pods -o wide".to_owned()];
        if let Some(shape) = shape {
            hints.push("kubectl logs deployment/hello --follow".to_owned());
            hints.push("kubectl exec -it deployment/hello -- sh".to_owned());
            hints.push(format!("kubectl port-forward deployment/hello 8080:{}", shape.port));
            // One port has room for one.
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

/// What a node says whose pods are not kept apart.
fn unguarded(nodes: &Value) -> Option<&str> {
    let nodes = nodes["items"].as_array()?;
    let mut conditions = nodes.iter().filter_map(|node| node["status"]["conditions"].as_array()).flatten();
    let found =
        conditions.find(|known| known["type"] == "virtual-kubelet.io/Isolated" && known["status"] == "False");
    found?["message"].as_str()
}

fn told(took: Duration, since_start: Duration) -> anyhow::Result<()> {
    say(&format!(
        "\nRunning {} after they were created, {} after the start.",
        seconds(took),
        seconds(since_start)
    ))
}

// === impl Shape ===

impl Shape {
    /// Two replicas, where each has a network of its own. Where they have the machine's, one, on a port that is free.
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
    fn replicas_that_would_clash_on_a_port_are_not_made() {
        let bridged = Shape::on(&json!({ "items": [node("True"), node("True")] })).unwrap();
        assert_eq!(bridged, Shape { replicas: 2, port: PORT });
        for nodes in [json!({ "items": [node("True"), node("False")] }), json!({ "items": [] }), json!(null)]
        {
            let shape = Shape::on(&nodes).unwrap();
            assert!(shape.replicas == 1 && shape.port != 0, "{shape:?}");
        }
    }

    #[test]
    fn a_node_whose_pods_are_not_kept_apart_is_told_of() {
        let node = |status: &str| {
            json!({ "items": [{ "status": { "conditions": [
                { "type": "virtual-kubelet.io/Isolated", "status": status, "message": "plain" },
            ] } }] })
        };
        assert_eq!(unguarded(&node("False")), Some("plain"));
        assert_eq!(unguarded(&node("True")), None);
    }

    #[test]
    fn the_manifest_is_whole() {
        let text = Shape { replicas: 2, port: 8123 }.manifest();
        let kinds: Vec<Value> = text
            .split("\n---\n")
            .map(|part| serde_saphyr::from_str::<Value>(part).unwrap()["kind"].clone())
            .collect();
        assert_eq!(kinds, ["ConfigMap", "Deployment", "Job"]);
        assert!(text.contains(NAME) && text.contains("port: 8123}") && !text.contains("{port}"), "{text}");
    }
}
