//! Resolves pods with our resolver and compares the results with the kubelet's recordings.

use std::{collections::BTreeMap, path::PathBuf, process::Command, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use vk_kube::{Client, Metrics};
use vk_node::resolve::{Limits, ResolverFactory, ServiceCache, Sources};
use vk_provider::{
    Error, PodEvent, Resolver,
    resolve::{ContainerInputs, Facts, FileSet, TokenLifetime},
};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::ControlPlane;

use super::{
    case::{ENTRY_POINT, IMAGE, NODE},
    control_plane::{Placed, volume_name},
    recording::{Container, Node, Placeholders, Recording, Started},
    volume_files,
};

/// Generous, because these tests run in parallel with others.
const SOON: Duration = Duration::from_secs(30);
/// Shell of containers that do not run the probe image.
const SHELL: &str = "/bin/sh";
/// Waiting reason of a container whose environment cannot be resolved.
const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// Our resolver on a node with the properties of the kubelet's node.
pub(super) struct OurResolver {
    factory: ResolverFactory,
    node: Node,
    /// Events of all pods.
    events: Mutex<(mpsc::Receiver<PodEvent>, Vec<PodEvent>)>,
    supervisor: Supervisor,
}

/// A pod that is resolved.
struct PodUnderTest<'a> {
    pod: &'a Pod,
    answers: &'a dyn Resolver,
    facts: Facts,
    words: Placeholders,
}

// === impl OurResolver ===

impl OurResolver {
    pub(super) fn new(cluster: &ControlPlane, node: Node) -> Self {
        let object: KubeNode = serde_json::from_value(json!({
            "metadata": {"name": NODE},
            "status": {"allocatable": node.allocatable},
        }))
        .unwrap();
        let supervisor = Supervisor::new();
        let client = Client::fixed(cluster.node_client(NODE).unwrap(), Metrics::default());
        let sources = Sources {
            services: ServiceCache::new(client.clone(), &supervisor),
            client,
            node: NODE.to_owned(),
            ips: node.addresses.clone(),
            observed_node: watch::Sender::new(Some(Arc::new(object))).subscribe(),
            clock: Clock::system(),
            limits: Limits::default(),
            watches: Gauge::default(),
        };
        let factory = ResolverFactory::new(sources, &supervisor);
        let events = Mutex::new((factory.take_events().unwrap(), Vec::new()));
        Self { factory, node, events, supervisor }
    }

    /// Differences between our result and the recording of this pod.
    pub(super) async fn differences(&self, placed: Placed, recorded: &Recording) -> Vec<String> {
        let Placed { pod, mut words } = placed;
        let pod = Arc::new(pod);
        let spec = pod.spec.as_ref().unwrap();
        let pod_ips = if spec.host_network == Some(true) {
            self.node.addresses.clone()
        } else {
            let invented = ["10.211.99.99", "fd00:211::99"];
            words.learn(invented[0], "{pod IP}");
            words.learn(invented[1], "{second pod IP}");
            invented.map(|address| address.parse().unwrap()).into()
        };
        let folder = tempfile::tempdir().unwrap();
        words.learn(folder.path().to_str().unwrap(), "{folder}");
        let empty: BTreeMap<String, PathBuf> = spec
            .volumes
            .iter()
            .flatten()
            .filter(|volume| volume.empty_dir.is_some())
            .map(|volume| {
                // Paths of the kubelet, because messages contain them.
                let uid = pod.metadata.uid.as_deref().unwrap();
                let place = format!("kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/{}", volume.name);
                let place = folder.path().join(place);
                std::fs::create_dir_all(&place).unwrap();
                (volume.name.clone(), place)
            })
            .collect();
        let facts = Facts { pod_ips, host_ips: self.node.addresses.clone(), volumes: empty };
        let answers = self.factory.pod(&pod);
        let asked = PodUnderTest { pod: &pod, answers: &answers, facts, words };
        let mut found = asked.differences(recorded).await;
        let told = self.told(pod.metadata.uid.as_deref().unwrap());
        for warning in &recorded.warnings {
            let same = |event: &PodEvent| {
                event.reason == warning.reason
                    && message_matches(&warning.message, &asked.words.replace(&event.message))
            };
            // Messages of the runtime are not compared.
            let of_runtime = recorded.containers.values().any(|container| container.broken.is_some());
            if !of_runtime && !told.iter().any(same) {
                let told: Vec<_> = told.iter().map(|event| (&event.reason, &event.message)).collect();
                found.push(format!("people heard from ours {told:?}; from the kubelet {warning:?}"));
            }
        }
        answers.close();
        found
    }

    /// Events of a pod.
    fn told(&self, uid: &str) -> Vec<PodEvent> {
        let mut events = self.events.lock();
        let (source, all) = &mut *events;
        all.extend(std::iter::from_fn(|| source.try_recv().ok()));
        all.iter().filter(|event| &*event.pod.uid == uid).cloned().collect()
    }

    pub(super) async fn stop(self) {
        assert!(self.supervisor.shut_down(SOON).await, "something of ours still runs");
    }
}

// === impl PodUnderTest ===

impl PodUnderTest<'_> {
    async fn differences(&self, recorded: &Recording) -> Vec<String> {
        let mut found = Vec::new();
        let (volumes, faults) = self.volumes().await;
        let expected: Vec<&str> = recorded
            .warnings
            .iter()
            .filter(|warning| warning.reason == "FailedMount")
            .map(|warning| warning.message.as_str())
            .collect();
        for fault in &faults {
            if !expected.iter().any(|text| message_matches(text, fault)) {
                found.push(format!("ours: {fault}; the kubelet: {expected:?}"));
            }
        }
        if faults.is_empty() && !expected.is_empty() {
            found.push(format!("ours makes every volume; the kubelet: {expected:?}"));
        }
        let spec = self.pod.spec.as_ref().unwrap();
        // In start order: a container may leave a file for the next.
        let init = spec.init_containers.iter().flatten().map(|container| &container.name);
        let added = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
        for name in init.chain(spec.containers.iter().map(|container| &container.name)).chain(added) {
            let Some(container) = recorded.containers.get(name) else {
                found.push(format!("container {name} is not in the recording"));
                continue;
            };
            let answer = self.answers.container(name, &self.facts).await;
            if let Err(difference) = self.container(container, answer, &volumes) {
                found.push(format!("container {name}: {difference}"));
            }
        }
        if let Err(error) = self.answers.pull_credentials(IMAGE).await {
            found.push(format!("ours has no registry credentials: {}", error.report()));
        }
        found
    }

    /// The volumes that can be resolved, and the kubelet's messages for the others.
    async fn volumes(&self) -> (BTreeMap<String, FileSet>, Vec<String>) {
        let (mut sets, mut faults) = (BTreeMap::new(), Vec::new());
        for volume in self.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            if volume.empty_dir.is_some() {
                continue;
            }
            let mut stream = self.answers.volume(&volume.name, TokenLifetime::Specified);
            match timeout(SOON, stream.next()).await {
                Ok(Some(Ok(set))) => drop(sets.insert(volume_name(&volume.name).to_owned(), set)),
                Ok(Some(Err(error))) => {
                    let why = self.words.replace(&error.report());
                    faults.push(format!("MountVolume.SetUp failed for volume {:?} : {why}", volume.name));
                }
                other => faults.push(format!("volume {}: nothing came: {other:?}", volume.name)),
            }
        }
        (sets, faults)
    }

    fn container(
        &self,
        recorded: &Container,
        answer: Result<ContainerInputs, Error>,
        volumes: &BTreeMap<String, FileSet>,
    ) -> Result<(), String> {
        match (&recorded.started, &recorded.waiting) {
            (Some(started), _) => {
                let inputs = answer.map_err(|error| format!("ours cannot start it: {}", error.report()))?;
                self.started(started, inputs, volumes)
            }
            (None, Some(waiting)) if waiting.reason == CONFIG_ERROR => match answer {
                Ok(_) => Err(format!("ours starts it; the kubelet: {}", waiting.message)),
                Err(error) => {
                    let ours = self.words.replace(&error.report());
                    let same = message_matches(&waiting.message, &ours);
                    if same { Ok(()) } else { Err(format!("ours: {ours}; the kubelet: {}", waiting.message)) }
                }
            },
            // It waits for other containers.
            (None, Some(_)) => Ok(()),
            (None, None) => match (&recorded.broken, answer) {
                (Some(why), Ok(_)) => Err(format!("ours starts it; the runtime cannot: {why}")),
                (Some(_), Err(_)) => Ok(()),
                // It does not run the probe image. Its files in a volume are for later containers.
                (None, Ok(inputs)) => self.run(&inputs),
                (None, Err(error)) => Err(format!("ours cannot start it: {}", error.report())),
            },
        }
    }

    fn started(
        &self,
        recorded: &Started,
        inputs: ContainerInputs,
        volumes: &BTreeMap<String, FileSet>,
    ) -> Result<(), String> {
        let env = inputs.pairs();
        let mut ours = Started {
            command: inputs.command.map_or_else(|| vec![ENTRY_POINT.to_owned()], |command| command.words),
            ..Started::default()
        };
        ours.command.extend(inputs.args.unwrap_or_default().words);
        for argument in &mut ours.command {
            *argument = self.words.replace(argument);
        }
        for (name, value) in env {
            if ours.env.insert(name.clone(), self.words.replace(&value)).is_some() {
                return Err(format!("{name} is twice in the environment of ours"));
            }
        }
        let group = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.fs_group);
        let group = group.map(|group| u32::try_from(group).unwrap());
        for (name, volume) in &recorded.volumes {
            let set = volumes.get(name).ok_or_else(|| format!("ours has no volume {name}"))?;
            ours.volumes.insert(name.clone(), volume_files::volume(set, group, volume, &self.words)?);
        }
        if ours == *recorded {
            return Ok(());
        }
        let text = |started: &Started| serde_json::to_string(started).unwrap();
        Err(format!("\n  ours        {}\n  the kubelet {}", text(&ours), text(recorded)))
    }

    /// Runs the container's command on the volume directories.
    fn run(&self, inputs: &ContainerInputs) -> Result<(), String> {
        let command = inputs.command.as_ref().map(|command| &*command.words).unwrap_or_default();
        let [SHELL, flag, script] = command.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
            return Err(format!("is no shell: {command:?}"));
        };
        let script = self.facts.volumes.iter().fold(script.to_owned(), |script, (name, place)| {
            script.replace(&format!("/v/{name}"), &place.display().to_string())
        });
        let status = Command::new(SHELL).args([flag, script.as_str()]).status().unwrap();
        if status.success() { Ok(()) } else { Err(format!("{script}: {status}")) }
    }
}

/// Whether our message contains the kubelet's.
fn message_matches(kubelet: &str, ours: &str) -> bool {
    let open = kubelet.strip_suffix("{an error of the file system}");
    open.is_some_and(|start| ours.starts_with(start))
        || ours.strip_prefix(kubelet).is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}
