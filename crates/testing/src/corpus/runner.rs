//! Runs cases on a control plane and records or compares them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    Action, Case, Checkpoint, Observation, Recording, Step, case, differences, holds, pod_watch::PodWatch,
};
use crate::{ControlPlane, kubectl};

/// The node that all pods are bound to.
pub const NODE: &str = "peer";
/// A state that does not change for this time is stable.
const SETTLED: Duration = Duration::from_secs(1);
/// Interval of polling.
const POLL: Duration = Duration::from_millis(250);
/// Time limit of a log request: the API server may retry for long.
const LONGEST_REQUEST: Duration = Duration::from_secs(20);
/// Of longer logs only size and digest are kept.
const LONGEST_LOG: usize = 4096;

/// Reads the state of a pod, given by its UID, from the container runtime.
pub type SnapshotFn = Arc<dyn Fn(String) -> BoxFuture<'static, Value> + Send + Sync>;
/// Texts that differ between runs, and their replacements.
pub type Replacements = Vec<(String, &'static str)>;

/// Runs cases.
pub struct CaseRunner<'a> {
    /// The control plane.
    pub cluster: &'a ControlPlane,
    /// A client of an administrator.
    pub client: Client,
    /// Reads the state of the runtime.
    pub snapshot: SnapshotFn,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// Texts to replace in observations.
    pub replacements: Replacements,
    /// Reasons of events that the kubelet does not emit.
    pub own_events: &'static [&'static str],
    /// The number of addresses of a pod, one per IP family of its network.
    pub addresses: usize,
}

/// One run of a case.
struct CaseRun<'a> {
    runner: &'a CaseRunner<'a>,
    case: &'a Case,
    namespace: String,
    watch: PodWatch,
}

// === impl CaseRunner ===

impl CaseRunner<'_> {
    /// Runs a case and returns the observations. The error names the checkpoint that was not reached and the state instead.
    pub async fn record(&self, case: &Case) -> Result<Vec<Observation>, String> {
        let mut run = self.begin(case).await?;
        let mut observations = Vec::new();
        for step in &case.steps {
            match step {
                Step::Do(action) => run.act(action).await?,
                Step::Reach(checkpoint) => observations.push(run.reach(checkpoint).await?),
            }
        }
        run.end().await;
        Ok(observations)
    }

    /// Runs a case and returns the differences from its recording.
    pub async fn compare(&self, case: &Case, recorded: &Recording) -> Vec<String> {
        let mut found = Vec::new();
        let mut observations = recorded.moments.iter();
        let mut run = match self.begin(case).await {
            Ok(run) => run,
            Err(error) => return vec![error],
        };
        for step in &case.steps {
            let done = match step {
                Step::Do(action) => run.act(action).await,
                Step::Reach(checkpoint) if checkpoint.passing => {
                    observations.next();
                    let end = Instant::now() + Duration::from_secs(checkpoint.within);
                    run.arrive(checkpoint, end).await
                }
                Step::Reach(checkpoint) => {
                    let observation =
                        observations.next().filter(|observation| observation.name == checkpoint.reach);
                    match observation {
                        Some(observation) => {
                            run.reach_recorded(checkpoint, observation, recorded).await.map(|differences| {
                                found.extend(
                                    differences.iter().map(|text| format!("{}: {text}", checkpoint.reach)),
                                );
                            })
                        }
                        None => Err(format!("{}: not recorded", checkpoint.reach)),
                    }
                }
            };
            if let Err(error) = done {
                found.push(error);
                break;
            }
        }
        run.end().await;
        found
    }

    async fn begin<'a>(&'a self, case: &'a Case) -> Result<CaseRun<'a>, String> {
        let namespace = self.cluster.namespace("case").await.map_err(|error| error.to_string())?;
        let namespace = namespace.name().to_owned();
        for (resource, object) in &case.objects {
            self.create(&namespace, resource, object).await?;
        }
        // Untyped, to keep fields that our types do not have.
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &ApiResource::erase::<Pod>(&()));
        let pod = serde_json::from_value(case.pod.clone()).map_err(|error| error.to_string())?;
        let pod = pods.create(&PostParams::default(), &pod).await;
        let pod = pod.map_err(|error| format!("create the pod: {error}"))?;
        Ok(CaseRun { runner: self, case, namespace, watch: PodWatch::new(pods, &pod) })
    }

    async fn create(
        &self,
        namespace: &str,
        resource: &ApiResource,
        object: &DynamicObject,
    ) -> Result<(), String> {
        let created = self.objects(namespace, resource).create(&PostParams::default(), object).await;
        if resource.kind == "PersistentVolumeClaim"
            && let Ok(claim) = &created
        {
            return self.bind(namespace, claim).await.map_err(|error| format!("bind the claim: {error}"));
        }
        match created {
            // Cluster-scoped objects are created once for all cases.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(format!("create {}: {error}", resource.kind)),
            Ok(_) => Ok(()),
        }
    }

    /// Binds a claim to its volume, as the controller-manager does.
    async fn bind(&self, namespace: &str, claim: &DynamicObject) -> kube::Result<()> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let (name, uid) = (claim.metadata.name.as_deref().unwrap_or_default(), &claim.metadata.uid);
        let volume = claim.data["spec"]["volumeName"].as_str().unwrap_or_default();
        let params = PatchParams::default();
        let reference = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace, "name": name, "uid": uid});
        volumes.patch(volume, &params, &Patch::Merge(json!({"spec": {"claimRef": reference}}))).await?;
        let bound = json!({"status": {"phase": "Bound"}});
        volumes.patch_status(volume, &params, &Patch::Merge(&bound)).await?;
        // As large as requested: otherwise the node would resize it.
        let capacity = &claim.data["spec"]["resources"]["requests"];
        let bound = json!({"status": {"phase": "Bound", "capacity": capacity}});
        claims.patch_status(name, &params, &Patch::Merge(&bound)).await.map(drop)
    }

    fn objects(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        if ["PersistentVolume", "RuntimeClass"].contains(&resource.kind.as_str()) {
            Api::all_with(self.client.clone(), resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, resource)
        }
    }
}

// === impl CaseRun ===

impl CaseRun<'_> {
    /// Waits for a checkpoint and until the pod is stable.
    async fn reach(&mut self, checkpoint: &Checkpoint) -> Result<Observation, String> {
        let end = Instant::now() + Duration::from_secs(checkpoint.within);
        // The last consistent observation: the status may lag behind the runtime.
        let mut good = None::<Observation>;
        while good.is_none() {
            self.arrive(checkpoint, end).await?;
            loop {
                let observation = self.observe(checkpoint).await?;
                if observation.is_consistent() {
                    good = Some(observation);
                }
                // A change within a second: the state was not stable.
                let changed = timeout(SETTLED, self.watch.change()).await.is_ok();
                if !changed || self.missing(checkpoint).is_some() {
                    break;
                }
            }
            if Instant::now() > end {
                break;
            }
        }
        let Some(mut observation) = good else {
            return Err(format!(
                "{}: {}: reached only in inconsistent states",
                self.case.name, checkpoint.reach
            ));
        };
        // Containers may still write logs.
        while !checkpoint.gone && self.missing(checkpoint).is_none() && Instant::now() < end {
            tokio::time::sleep(SETTLED).await;
            let before =
                std::mem::replace(&mut observation.logs, self.replaced(&self.logs(&observation.pod).await)?);
            if before == observation.logs
                && !printing_containers(&observation)
                    .any(|name| before.get(name).is_none_or(String::is_empty))
            {
                break;
            }
        }
        // Events may arrive later.
        while let Some(reason) = missing_event(checkpoint, &observation) {
            if Instant::now() > end {
                return Err(format!("{}: {}: no event {reason}", self.case.name, checkpoint.reach));
            }
            tokio::time::sleep(POLL).await;
            observation.events = self.replaced(&self.events().await?)?;
        }
        Ok(observation)
    }

    /// Waits for a checkpoint and until it equals the recording. Returns the differences.
    async fn reach_recorded(
        &mut self,
        checkpoint: &Checkpoint,
        recorded: &Observation,
        recording: &Recording,
    ) -> Result<Vec<String>, String> {
        let last = recording.moments.last().unwrap_or(recorded);
        let end = Instant::now() + Duration::from_secs(checkpoint.within);
        self.arrive(checkpoint, end).await?;
        let maybe = checkpoint.maybe.iter().map(String::as_str);
        let may: Vec<&str> = self.runner.own_events.iter().copied().chain(maybe).collect();
        let mut found;
        loop {
            let observation = self.observe(checkpoint).await?;
            found = differences(recorded, last, &observation, &may, self.runner.addresses);
            if found.is_empty() || Instant::now() > end {
                return Ok(found);
            }
            let _ = timeout(POLL, self.watch.change()).await;
            // The pod has left the checkpoint while it was observed.
            if self.missing(checkpoint).is_some() {
                let differences_before = found.clone();
                if timeout_at(end, self.until(checkpoint)).await.is_err() {
                    return Ok(differences_before);
                }
            }
        }
    }

    async fn arrive(&mut self, checkpoint: &Checkpoint, end: Instant) -> Result<(), String> {
        if timeout_at(end, self.until(checkpoint)).await.is_ok() {
            return Ok(());
        }
        let (name, reach) = (&self.case.name, &checkpoint.reach);
        let missing = self.missing(checkpoint).unwrap_or_default();
        let events = self.events().await.unwrap_or_default();
        let status = &self.watch.pod()["status"];
        let states: Vec<String> =
            ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
                .into_iter()
                .flat_map(|list| status[list].as_array().into_iter().flatten())
                .map(|container| {
                    format!("{} #{} {}", container["name"], container["restartCount"], container["state"])
                })
                .collect();
        let states = states.join(", ");
        Err(format!("{name}: {reach}: not reached: {missing}; containers: {states}; events: {events:?}"))
    }

    async fn until(&mut self, checkpoint: &Checkpoint) {
        while self.missing(checkpoint).is_some() {
            self.watch.change().await;
        }
    }

    /// What is missing to reach a checkpoint.
    fn missing(&self, checkpoint: &Checkpoint) -> Option<String> {
        if checkpoint.gone {
            return (!self.watch.gone()).then(|| "the pod still exists".to_owned());
        }
        if self.watch.gone() {
            return Some("the pod is gone".to_owned());
        }
        holds(&checkpoint.status, &self.watch.pod()["status"]).err()
    }

    async fn observe(&mut self, checkpoint: &Checkpoint) -> Result<Observation, String> {
        let mut seen = self.observe_once(checkpoint).await?;
        // The runtime and the API server are read one after the other: repeat until the pod did not change in between.
        for _ in 0..10 {
            let before = self.watch.pod()["status"].clone();
            let _ = timeout(Duration::from_millis(50), self.watch.change()).await;
            if self.watch.pod()["status"] == before || self.missing(checkpoint).is_some() {
                break;
            }
            seen = self.observe_once(checkpoint).await?;
        }
        Ok(seen)
    }

    async fn observe_once(&self, checkpoint: &Checkpoint) -> Result<Observation, String> {
        let pod = self.watch.pod().clone();
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let observation = Observation {
            name: checkpoint.reach.clone(),
            gone: self.watch.gone(),
            passing: checkpoint.passing,
            snapshot: (self.runner.snapshot)(uid).await,
            now: (self.runner.now)().to_string(),
            events: self.events().await?,
            logs: if self.watch.gone() { BTreeMap::new() } else { self.logs(&pod).await },
            pod,
        };
        self.replaced(&observation)
    }

    /// Applies the replacements.
    fn replaced<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<T, String> {
        let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
        let text = self.runner.replacements.iter().fold(text, |text, (from, to)| text.replace(from, to));
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    async fn events(&self) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
        let events: Api<Event> = Api::namespaced(self.runner.client.clone(), &self.namespace);
        let about = ListParams::default().fields(&format!("involvedObject.name={}", self.case.name));
        let events = events.list(&about).await.map_err(|error| format!("list events: {error}"))?;
        let mut reasons = BTreeMap::<String, BTreeSet<String>>::new();
        for event in events {
            reasons
                .entry(event.reason.unwrap_or_default())
                .or_default()
                .insert(event.message.unwrap_or_default());
        }
        Ok(reasons)
    }

    /// The logs of all containers that have run.
    async fn logs(&self, pod: &Value) -> BTreeMap<String, String> {
        let pods: Api<Pod> = Api::namespaced(self.runner.client.clone(), &self.namespace);
        let mut logs = BTreeMap::new();
        for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            for container in pod["status"][list].as_array().into_iter().flatten() {
                let Some(name) = container["name"].as_str().filter(|_| has_run(container)) else { continue };
                let params = LogParams { container: Some(name.to_owned()), ..LogParams::default() };
                let text = match timeout(LONGEST_REQUEST, pods.logs(&self.case.name, &params)).await {
                    Err(_) => "cannot be read: no answer".to_owned(),
                    Ok(Ok(text)) if text.len() > LONGEST_LOG => {
                        let sum = crate::host::image::sha256(text.as_bytes());
                        format!("{} bytes, {}", text.len(), &sum[..16])
                    }
                    Ok(Ok(text)) => text,
                    Ok(Err(kube::Error::Api(status))) => format!("cannot be read: {}", status.message),
                    Ok(Err(error)) => format!("cannot be read: {error}"),
                };
                logs.insert(name.to_owned(), text);
            }
        }
        logs
    }

    async fn act(&mut self, action: &Action) -> Result<(), String> {
        let pods: Api<Pod> = Api::namespaced(self.runner.client.clone(), &self.namespace);
        let name = &self.case.name;
        let done = match action {
            Action::Delete { grace } => {
                let params = DeleteParams { grace_period_seconds: *grace, ..DeleteParams::default() };
                pods.delete(name, &params).await.map(drop)
            }
            Action::Ephemeral(containers) => {
                let mut containers = containers.clone();
                containers.iter_mut().for_each(case::complete_container);
                let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": containers}}));
                pods.patch_ephemeral_containers(name, &PatchParams::default(), &patch).await.map(drop)
            }
            Action::Image { container, image } => {
                let containers = json!([{"name": container, "image": image}]);
                let patch = Patch::Strategic(json!({"spec": {"containers": containers}}));
                pods.patch(name, &PatchParams::default(), &patch).await.map(drop)
            }
            Action::Create(object) => {
                let (resource, object) = case::object(object.clone());
                return self.runner.create(&self.namespace, &resource, &object).await;
            }
            Action::Patch(object) => {
                let (resource, object) = case::object(object.clone());
                let objects = self.runner.objects(&self.namespace, &resource);
                let target = object.metadata.name.clone().unwrap_or_default();
                objects.patch(&target, &PatchParams::default(), &Patch::Merge(&object)).await.map(drop)
            }
            Action::Exec { container, command } => {
                let mut args = vec!["exec", "-n", &self.namespace, name, "-c", container, "--"];
                args.extend(command.iter().map(String::as_str));
                let output = kubectl(self.runner.cluster, args).await.map_err(|error| error.to_string())?;
                let said = || format!("{name}: exec: {}{}", output.stdout, output.stderr);
                return output.success().then_some(()).ok_or_else(said);
            }
        };
        done.map_err(|error| format!("{name}: {action:?}: {error}"))
    }

    /// Deletes the pod, so that it does not run beside later cases.
    async fn end(&mut self) {
        if self.watch.gone() {
            return;
        }
        let pods: Api<Pod> = Api::namespaced(self.runner.client.clone(), &self.namespace);
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let _ = pods.delete(&self.case.name, &now).await;
    }
}

/// Containers that print something and then keep running.
fn printing_containers(observation: &Observation) -> impl Iterator<Item = &str> {
    let spec = &observation.pod["spec"];
    let containers = spec["containers"].as_array().into_iter().flatten();
    let prints = |container: &&Value| {
        container["command"][2].as_str().is_some_and(|text| text.contains("; exec /stay"))
    };
    containers.filter(prints).filter_map(|container| container["name"].as_str())
}

/// The reason of an expected event that is missing.
fn missing_event<'a>(checkpoint: &'a Checkpoint, observation: &Observation) -> Option<&'a String> {
    checkpoint.events.iter().find(|reason| !observation.events.contains_key(*reason))
}

fn has_run(container: &Value) -> bool {
    let state = &container["state"];
    state.get("running").is_some()
        || state.get("terminated").is_some()
        || container["lastState"].get("terminated").is_some()
}
