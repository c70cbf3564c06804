//! Runs cases on a control plane.

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

use super::{Action, Case, Checkpoint, Moment, Recording, Step, case, differences, follow::Follow, holds};
use crate::{ControlPlane, kubectl};

/// The node that all pods are bound to.
pub const NODE: &str = "peer";
/// A state that lasts this long is taken for settled.
const SETTLED: Duration = Duration::from_secs(1);
/// How often is asked for what nobody tells.
const AGAIN: Duration = Duration::from_millis(250);
/// Clients may try again and again what a node cannot answer.
const LONGEST_REQUEST: Duration = Duration::from_secs(20);
/// Of what is longer only size and sum are kept.
const LONGEST_LOG: usize = 4096;

/// Says what the runtime has of a pod, by its UID.
pub type Look = Arc<dyn Fn(String) -> BoxFuture<'static, Value> + Send + Sync>;
/// What differs from run to run, with what stands for it.
pub type Words = Vec<(String, &'static str)>;

/// Where cases are run.
pub struct Stage<'a> {
    /// The control plane.
    pub cluster: &'a ControlPlane,
    /// Who asks it.
    pub client: Client,
    /// Who asks the runtime.
    pub look: Look,
    /// What time it is.
    pub now: fn() -> Timestamp,
    /// Texts to replace in everything seen.
    pub words: Words,
    /// Reasons of events that the kubelet does not have.
    pub own: &'static [&'static str],
    /// How many addresses a pod has, one of each family that its network has.
    pub addresses: usize,
}

/// One case on the stage.
struct Play<'a> {
    stage: &'a Stage<'a>,
    case: &'a Case,
    namespace: String,
    follow: Follow,
}

// === impl Stage ===

impl Stage<'_> {
    /// Runs a case to its end and writes down what it showed. The error says which step was not reached, and what was there instead.
    pub async fn record(&self, case: &Case) -> Result<Vec<Moment>, String> {
        let mut play = self.begin(case).await?;
        let mut moments = Vec::new();
        for step in &case.steps {
            match step {
                Step::Do(action) => play.act(action).await?,
                Step::Reach(checkpoint) => moments.push(play.reach(checkpoint).await?),
            }
        }
        play.end().await;
        Ok(moments)
    }

    /// Runs a case, and says at which checkpoints it was not as it is recorded, and how.
    pub async fn compare(&self, case: &Case, recorded: &Recording) -> Vec<String> {
        let mut found = Vec::new();
        let mut moments = recorded.moments.iter();
        let mut play = match self.begin(case).await {
            Ok(play) => play,
            Err(error) => return vec![error],
        };
        for step in &case.steps {
            let done = match step {
                Step::Do(action) => play.act(action).await,
                Step::Reach(checkpoint) if checkpoint.passing => {
                    moments.next();
                    let end = Instant::now() + Duration::from_secs(checkpoint.within);
                    play.arrive(checkpoint, end).await
                }
                Step::Reach(checkpoint) => {
                    let moment = moments.next().filter(|moment| moment.name == checkpoint.reach);
                    match moment {
                        Some(moment) => {
                            play.reach_the_same(checkpoint, moment, recorded).await.map(|differences| {
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
        play.end().await;
        found
    }

    async fn begin<'a>(&'a self, case: &'a Case) -> Result<Play<'a>, String> {
        let namespace = self.cluster.namespace("case").await.map_err(|error| error.to_string())?;
        let namespace = namespace.name().to_owned();
        for (resource, object) in &case.objects {
            self.create(&namespace, resource, object).await?;
        }
        // Untyped, so that the API server sees also what our types do not know.
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &ApiResource::erase::<Pod>(&()));
        let pod = serde_json::from_value(case.pod.clone()).map_err(|error| error.to_string())?;
        let pod = pods.create(&PostParams::default(), &pod).await;
        let pod = pod.map_err(|error| format!("the pod is refused: {error}"))?;
        Ok(Play { stage: self, case, namespace, follow: Follow::new(pods, &pod) })
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
            return self.bind(namespace, claim).await.map_err(|error| format!("cannot bind: {error}"));
        }
        match created {
            // Objects of the cluster are there once for all.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(format!("{} is refused: {error}", resource.kind)),
            Ok(_) => Ok(()),
        }
    }

    /// Does for a claim and its volume what a controller does.
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
        // As large as was asked for, or the node would let it grow.
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

// === impl Play ===

impl Play<'_> {
    /// Waits for a checkpoint, and until nothing changes for a moment.
    async fn reach(&mut self, checkpoint: &Checkpoint) -> Result<Moment, String> {
        let end = Instant::now() + Duration::from_secs(checkpoint.within);
        // The last one at which the status said what the runtime had: it may come late after what it tells.
        let mut good = None::<Moment>;
        while good.is_none() {
            self.arrive(checkpoint, end).await?;
            loop {
                let moment = self.moment(checkpoint).await?;
                if moment.is_consistent() {
                    good = Some(moment);
                }
                // A change within a second: the state was on its way.
                let changed = timeout(SETTLED, self.follow.change()).await.is_ok();
                if !changed || self.missing(checkpoint).is_some() {
                    break;
                }
            }
            if Instant::now() > end {
                break;
            }
        }
        let Some(mut moment) = good else {
            return Err(format!("{}: {}: seen only in between", self.case.name, checkpoint.reach));
        };
        // Containers may still be writing.
        while !checkpoint.gone && self.missing(checkpoint).is_none() && Instant::now() < end {
            tokio::time::sleep(SETTLED).await;
            let before = std::mem::replace(&mut moment.logs, self.replaced(&self.logs(&moment.pod).await)?);
            if before == moment.logs
                && !talkers(&moment).any(|name| before.get(name).is_none_or(String::is_empty))
            {
                break;
            }
        }
        // What people are told may come later still.
        while let Some(reason) = untold(checkpoint, &moment) {
            if Instant::now() > end {
                return Err(format!("{}: {}: no event {reason}", self.case.name, checkpoint.reach));
            }
            tokio::time::sleep(AGAIN).await;
            moment.events = self.replaced(&self.events().await?)?;
        }
        Ok(moment)
    }

    /// Waits for a checkpoint, and until it is as recorded. Returns in what it is not.
    async fn reach_the_same(
        &mut self,
        checkpoint: &Checkpoint,
        recorded: &Moment,
        recording: &Recording,
    ) -> Result<Vec<String>, String> {
        let last = recording.moments.last().unwrap_or(recorded);
        let end = Instant::now() + Duration::from_secs(checkpoint.within);
        self.arrive(checkpoint, end).await?;
        let maybe = checkpoint.maybe.iter().map(String::as_str);
        let may: Vec<&str> = self.stage.own.iter().copied().chain(maybe).collect();
        let mut found;
        loop {
            let moment = self.moment(checkpoint).await?;
            found = differences(recorded, last, &moment, &may, self.stage.addresses);
            if found.is_empty() || Instant::now() > end {
                return Ok(found);
            }
            let _ = timeout(AGAIN, self.follow.change()).await;
            // It went on while we looked: what it was then is all there is.
            if self.missing(checkpoint).is_some() {
                let moment_found = found.clone();
                if timeout_at(end, self.until(checkpoint)).await.is_err() {
                    return Ok(moment_found);
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
        let status = &self.follow.pod()["status"];
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
            self.follow.change().await;
        }
    }

    /// What a checkpoint still waits for.
    fn missing(&self, checkpoint: &Checkpoint) -> Option<String> {
        if checkpoint.gone {
            return (!self.follow.gone()).then(|| "the pod is still there".to_owned());
        }
        if self.follow.gone() {
            return Some("the pod is gone".to_owned());
        }
        holds(&checkpoint.status, &self.follow.pod()["status"]).err()
    }

    async fn moment(&mut self, checkpoint: &Checkpoint) -> Result<Moment, String> {
        let mut seen = self.glance(checkpoint).await?;
        // The runtime and the API server are asked one after the other: until both are of one state.
        for _ in 0..10 {
            let before = self.follow.pod()["status"].clone();
            let _ = timeout(Duration::from_millis(50), self.follow.change()).await;
            if self.follow.pod()["status"] == before || self.missing(checkpoint).is_some() {
                break;
            }
            seen = self.glance(checkpoint).await?;
        }
        Ok(seen)
    }

    async fn glance(&self, checkpoint: &Checkpoint) -> Result<Moment, String> {
        let pod = self.follow.pod().clone();
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let moment = Moment {
            name: checkpoint.reach.clone(),
            gone: self.follow.gone(),
            passing: checkpoint.passing,
            snapshot: (self.stage.look)(uid).await,
            now: (self.stage.now)().to_string(),
            events: self.events().await?,
            logs: if self.follow.gone() { BTreeMap::new() } else { self.logs(&pod).await },
            pod,
        };
        self.replaced(&moment)
    }

    /// With words in place of what differs from run to run.
    fn replaced<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<T, String> {
        let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
        let text = self.stage.words.iter().fold(text, |text, (from, to)| text.replace(from, to));
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    async fn events(&self) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
        let events: Api<Event> = Api::namespaced(self.stage.client.clone(), &self.namespace);
        let about = ListParams::default().fields(&format!("involvedObject.name={}", self.case.name));
        let events = events.list(&about).await.map_err(|error| format!("cannot list events: {error}"))?;
        let mut told = BTreeMap::<String, BTreeSet<String>>::new();
        for event in events {
            told.entry(event.reason.unwrap_or_default())
                .or_default()
                .insert(event.message.unwrap_or_default());
        }
        Ok(told)
    }

    /// The logs of all containers that have run.
    async fn logs(&self, pod: &Value) -> BTreeMap<String, String> {
        let pods: Api<Pod> = Api::namespaced(self.stage.client.clone(), &self.namespace);
        let mut logs = BTreeMap::new();
        for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            for container in pod["status"][list].as_array().into_iter().flatten() {
                let Some(name) = container["name"].as_str().filter(|_| has_run(container)) else { continue };
                let params = LogParams { container: Some(name.to_owned()), ..LogParams::default() };
                let text = match timeout(LONGEST_REQUEST, pods.logs(&self.case.name, &params)).await {
                    Err(_) => "cannot be read: no answer".to_owned(),
                    Ok(Ok(text)) if text.len() > LONGEST_LOG => {
                        let sum = crate::peer::image::sha256(text.as_bytes());
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
        let pods: Api<Pod> = Api::namespaced(self.stage.client.clone(), &self.namespace);
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
                return self.stage.create(&self.namespace, &resource, &object).await;
            }
            Action::Patch(object) => {
                let (resource, object) = case::object(object.clone());
                let objects = self.stage.objects(&self.namespace, &resource);
                let target = object.metadata.name.clone().unwrap_or_default();
                objects.patch(&target, &PatchParams::default(), &Patch::Merge(&object)).await.map(drop)
            }
            Action::Exec { container, command } => {
                let mut args = vec!["exec", "-n", &self.namespace, name, "-c", container, "--"];
                args.extend(command.iter().map(String::as_str));
                let output = kubectl(self.stage.cluster, args).await.map_err(|error| error.to_string())?;
                let said = || format!("{name}: exec: {}{}", output.stdout, output.stderr);
                return output.success().then_some(()).ok_or_else(said);
            }
        };
        done.map_err(|error| format!("{name}: {action:?}: {error}"))
    }

    /// Nothing of it shall run beside the cases that come after it.
    async fn end(&mut self) {
        if self.follow.gone() {
            return;
        }
        let pods: Api<Pod> = Api::namespaced(self.stage.client.clone(), &self.namespace);
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let _ = pods.delete(&self.case.name, &now).await;
    }
}

/// Containers of a moment that print something and go on then.
fn talkers(moment: &Moment) -> impl Iterator<Item = &str> {
    let spec = &moment.pod["spec"];
    let containers = spec["containers"].as_array().into_iter().flatten();
    let talks = |container: &&Value| {
        container["command"][2].as_str().is_some_and(|text| text.contains("; exec /stay"))
    };
    containers.filter(talks).filter_map(|container| container["name"].as_str())
}

/// What people should have been told, and were not.
fn untold<'a>(checkpoint: &'a Checkpoint, moment: &Moment) -> Option<&'a String> {
    checkpoint.events.iter().find(|reason| !moment.events.contains_key(*reason))
}

fn has_run(container: &Value) -> bool {
    let state = &container["state"];
    state.get("running").is_some()
        || state.get("terminated").is_some()
        || container["lastState"].get("terminated").is_some()
}
