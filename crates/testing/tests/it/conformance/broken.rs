//! The mock, with one fault.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, future, stream};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use vk_provider::{
    Changes, Error, NodeTemplate, ObservedPod, PodBundle, PodChange, PodRef, Provider, Quantity, Result,
    ability::{Attach, Exec, Fit, Logs, PortForward, Stats},
    error::Kind,
    node::{Condition, ConditionStatus},
    resolve::Facts,
};
use vk_provider_mock::{Mock, PodHost};

use super::{
    fault::Fault,
    inputs::misused,
    report::{is_over, is_refusable, pending},
};

const HOUR: Duration = Duration::from_hours(1);

/// A provider that keeps the contract but for one fault.
pub(crate) struct Broken {
    pub(super) inner: Mock,
    pub(super) host: PodHost,
    pub(super) fault: Fault,
    pub(super) memory: Arc<Mutex<Memory>>,
}

/// What this process remembers, where a fault needs it.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) created: HashMap<Arc<str>, usize>,
    order: Vec<Arc<str>>,
    pub(super) deleted: HashSet<Arc<str>>,
    pub(super) revived: HashSet<Arc<str>>,
    ran: HashSet<Arc<str>>,
    updated: HashSet<Arc<str>>,
    locked: HashSet<Arc<str>>,
    newest: HashMap<(Arc<str>, Arc<str>), PodRef>,
    refused: Option<PodRef>,
    creating: bool,
    descriptions: u64,
    pub(super) refusals: u64,
    pub(super) asked: Vec<Arc<Pod>>,
}

/// Clears the mark of a create under way, also when the call is dropped.
struct Creating(Arc<Mutex<Memory>>);

impl Drop for Creating {
    fn drop(&mut self) {
        self.0.lock().unwrap().creating = false;
    }
}

impl Broken {
    pub(crate) fn new(node: &str, host: PodHost, fault: Fault) -> Self {
        let inner = Mock::builder(node).host(host.clone()).volumes(true).build();
        Self { inner, host, fault, memory: Arc::default() }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn made(&self, pod: &PodRef) -> bool {
        self.memory.lock().unwrap().created.contains_key(&pod.uid)
    }

    fn ran(&self, pod: &PodRef) -> bool {
        self.memory.lock().unwrap().ran.contains(&pod.uid)
    }

    /// The pod that is taken for this one.
    fn taken_for(&self, pod: &PodRef) -> PodRef {
        let names = (Arc::clone(&pod.namespace), Arc::clone(&pod.name));
        self.memory.lock().unwrap().newest.get(&names).cloned().unwrap_or_else(|| pod.clone())
    }

    /// A lock that a dropped call leaves locked.
    async fn lock(&self, pod: &PodRef) -> Result<()> {
        if !self.memory.lock().unwrap().locked.insert(Arc::clone(&pod.uid)) {
            return Err(Error::internal(format!("pod {pod} is busy")));
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    fn unlock(&self, pod: &PodRef) {
        self.memory.lock().unwrap().locked.remove(&pod.uid);
    }

    async fn restart(&self, pod: &PodRef) {
        // One that is not running starts again by itself.
        let _ = self.inner.finish(pod, "app", 0).await;
    }

    fn told<T>(&self, answer: Result<T>) -> Result<T> {
        match answer {
            Err(error) if self.has(Fault::SaysNothingInErrors) => {
                Err(Error::new(error.kind().clone(), "failed"))
            }
            answer => answer,
        }
    }
}

/// The bundle with another spec.
fn with_spec(bundle: &PodBundle, change: impl FnOnce(&mut PodSpec)) -> PodBundle {
    let mut pod = Pod::clone(&bundle.pod);
    change(pod.spec.get_or_insert_default());
    PodBundle { pod: Arc::new(pod), resolver: Arc::clone(&bundle.resolver) }
}

#[async_trait]
impl Provider for Broken {
    async fn create_pod(&self, mut bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().unwrap();
        let there = self.inner.pod_status(&pod).await.is_ok();
        let refusable = is_refusable(&bundle.pod);
        let mut _creating = None;
        match self.fault {
            Fault::NeverStarts => {
                let mut slow = Pod::clone(&bundle.pod);
                let annotations = slow.metadata.annotations.get_or_insert_default();
                annotations.insert("mock.virtual-kubelet.io/start-delay".into(), "24h".into());
                bundle.pod = Arc::new(slow);
            }
            Fault::StartsAgain if there => self.restart(&pod).await,
            Fault::StartsAgainAtRestart if there && !self.made(&pod) => self.restart(&pod).await,
            Fault::AcceptsAnything if refusable => return Ok(()),
            Fault::LeavesWhatItRefused if refusable => {
                self.memory.lock().unwrap().refused = Some(pod.clone());
            }
            Fault::HidesWhatIsUnresolved => {
                let inputs = bundle.resolver.container("app", &Facts::default()).await;
                inputs.map_err(|error| Error::invalid(format!("create pod {pod}")).caused_by(error))?;
            }
            Fault::AsksForOtherImages => {
                bundle.resolver.pull_credentials("example.com/pause:1").await?;
            }
            Fault::LosesConcurrentCreates => {
                if std::mem::replace(&mut self.memory.lock().unwrap().creating, true) {
                    return Ok(());
                }
                _creating = Some(Creating(Arc::clone(&self.memory)));
                tokio::task::yield_now().await;
            }
            Fault::KillsTheUnknown => {
                for observed in self.inner.pods().await? {
                    if observed.pod.uid != pod.uid && !self.made(&observed.pod) {
                        self.inner.delete_pod(&observed.pod, None, Duration::ZERO).await?;
                    }
                }
            }
            Fault::LocksWhileCreating => self.lock(&pod).await?,
            Fault::NeverRestarts => {
                bundle = with_spec(&bundle, |spec| spec.restart_policy = Some("Never".into()));
            }
            Fault::RestartsSuccess => {
                bundle = with_spec(&bundle, |spec| {
                    if spec.restart_policy.as_deref() == Some("OnFailure") {
                        spec.restart_policy = Some("Always".into());
                    }
                });
            }
            Fault::SkipsInitContainers => {
                bundle = with_spec(&bundle, |spec| spec.init_containers = None);
            }
            _ => {}
        }
        let answer = self.inner.create_pod(misused(bundle, self.fault)).await;
        let mut memory = self.memory.lock().unwrap();
        if answer.is_ok() {
            if !memory.order.contains(&pod.uid) {
                memory.order.push(Arc::clone(&pod.uid));
            }
            *memory.created.entry(Arc::clone(&pod.uid)).or_default() += 1;
            memory.newest.insert((Arc::clone(&pod.namespace), Arc::clone(&pod.name)), pod.clone());
            let deleted = memory.deleted.clone();
            memory.revived.extend(deleted);
        }
        drop(memory);
        self.unlock(&pod);
        self.told(answer)
    }

    async fn update_pod(&self, mut bundle: PodBundle) -> Result<()> {
        let pod = bundle.reference().unwrap();
        let containers = bundle.pod.spec.iter().flat_map(|spec| &spec.containers);
        let new_image =
            containers.clone().any(|container| container.image.as_deref() != Some("busybox:1.37"));
        let resized = containers.clone().any(|container| container.resources.is_some());
        match self.fault {
            Fault::IgnoresUpdates => return self.inner.pod_status(&pod).await.map(drop),
            Fault::RestartsAtEveryUpdate => self.restart(&pod).await,
            Fault::KeepsTheFirstUpdate
                if !self.memory.lock().unwrap().updated.insert(Arc::clone(&pod.uid)) =>
            {
                return Ok(());
            }
            Fault::StopsWhenRefusing if new_image => {
                self.inner.delete_pod(&pod, None, Duration::ZERO).await?;
                return Err(Error::unsupported(format!("update pod {pod}: its image stays")));
            }
            Fault::StopsAtResize if resized => {
                self.inner.delete_pod(&pod, None, Duration::ZERO).await?;
            }
            Fault::DropsEphemeralContainers => {
                bundle = with_spec(&bundle, |spec| spec.ephemeral_containers = None);
            }
            _ => {}
        }
        match self.inner.update_pod(misused(bundle, self.fault)).await {
            Err(error) if self.has(Fault::LosesUpdatesOfTheUnknown) && *error.kind() == Kind::NotFound => {
                Ok(())
            }
            answer => self.told(answer),
        }
    }

    async fn delete_pod(
        &self,
        pod: &PodRef,
        last_known: Option<Arc<Pod>>,
        mut grace: Duration,
    ) -> Result<()> {
        let mut target = pod.clone();
        let again = self.memory.lock().unwrap().deleted.contains(&pod.uid);
        match self.fault {
            Fault::KeysByName | Fault::DeletesByName => target = self.taken_for(pod),
            Fault::NeverStops => return self.inner.pod_status(pod).await.map(drop),
            Fault::KeepsTheFirstGrace if again => return Ok(()),
            Fault::DeletesOnce if again => {
                return Err(Error::internal(format!("delete pod {pod}: it is deleted already")));
            }
            Fault::TakesZeroForAnHour if grace.is_zero() => grace = HOUR,
            Fault::NeedsTheLastKnown if last_known.is_none() => {
                return Err(Error::invalid(format!("delete pod {pod}: who was it?")));
            }
            Fault::KeepsWhatNeverStarted if self.made(pod) && !self.ran(pod) => return Ok(()),
            Fault::LocksWhileCreating if self.memory.lock().unwrap().locked.contains(&pod.uid) => {
                return Err(Error::internal(format!("pod {pod} is busy")));
            }
            Fault::ForgetsDeletesAtRestart if !self.made(pod) => {
                return Err(Error::not_found(format!("delete pod {pod}: not known")));
            }
            Fault::LocksWhileDeleting => self.lock(pod).await?,
            _ => {}
        }
        let answer = self.inner.delete_pod(&target, last_known, grace).await;
        self.unlock(pod);
        if answer.is_ok() {
            self.memory.lock().unwrap().deleted.insert(Arc::clone(&pod.uid));
        }
        if self.has(Fault::WaitsForTheEnd) {
            while self.inner.pod_status(pod).await.is_ok_and(|status| !is_over(&status)) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        match answer {
            Err(error) if self.has(Fault::FailsToDeleteTheUnknown) => {
                Err(Error::internal(error.message().to_owned()))
            }
            answer => self.told(answer),
        }
    }

    async fn pod_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let target = if self.has(Fault::KeysByName) { self.taken_for(pod) } else { pod.clone() };
        if self.has(Fault::ForgetsWhileStopping) && self.memory.lock().unwrap().deleted.contains(&pod.uid) {
            return Err(Error::not_found(format!("no pod {pod}")));
        }
        let mut status = match self.inner.pod_status(&target).await {
            Err(_) if self.has(Fault::CallsTheUnknownPending) => return Ok(pending()),
            answer => self.told(answer)?,
        };
        if status.phase.as_deref() == Some("Running") {
            self.memory.lock().unwrap().ran.insert(Arc::clone(&pod.uid));
        }
        self.bend(&target, &mut status);
        self.revive(&target, &mut status);
        Ok(status)
    }

    async fn pods(&self) -> Result<Vec<ObservedPod>> {
        let mut pods = self.inner.pods().await?;
        for observed in &mut pods {
            let pod = observed.pod.clone();
            self.bend(&pod, &mut observed.status);
            match self.fault {
                Fault::ForgetsTheMark => observed.node = None,
                Fault::ForgetsTheMarkAtRestart if !self.made(&pod) => observed.node = None,
                Fault::ListsOtherNames => observed.pod.name = Arc::clone(&pod.uid),
                Fault::ListsAnotherPhase if !is_over(&observed.status) => {
                    observed.status.phase = Some("Pending".into());
                }
                _ => {}
            }
        }
        match self.fault {
            Fault::ListsTwoAtMost => {
                let order = self.memory.lock().unwrap().order.clone();
                pods.retain(|observed| !order.iter().skip(2).any(|uid| *uid == observed.pod.uid));
            }
            Fault::ForgetsPodsAtRestart => pods.retain(|observed| self.made(&observed.pod)),
            Fault::KeysByName => pods.retain(|observed| self.taken_for(&observed.pod) == observed.pod),
            Fault::ListsEveryCreate => {
                let created = self.memory.lock().unwrap().created.clone();
                let times = |pod: &PodRef| created.get(&pod.uid).copied().unwrap_or(1);
                pods = pods.into_iter().flat_map(|pod| vec![pod.clone(); times(&pod.pod)]).collect();
            }
            Fault::LeavesWhatItRefused => {
                let refused = self.memory.lock().unwrap().refused.clone();
                let node = Some(self.inner.node().to_owned());
                pods.extend(refused.map(|pod| ObservedPod { pod, node, status: pending() }));
            }
            _ => {}
        }
        Ok(pods)
    }

    fn changes(&self) -> Changes {
        let Changes::Push(stream) = self.inner.changes() else { panic!("the mock pushes") };
        match self.fault {
            Fault::PollsWithoutPause => return Changes::Poll(Duration::ZERO),
            Fault::PushesNothing => return Changes::Push(stream::pending().boxed()),
            _ => {}
        }
        let bent = self.bender();
        Changes::Push(stream.filter_map(move |change| future::ready(bent(change))).boxed())
    }

    async fn ping(&self) -> Result<()> {
        match self.fault {
            Fault::HangsInPing => future::pending().await,
            Fault::FailsInPing => Err(Error::unavailable("ping: nobody is there")),
            Fault::PanicsInPing => panic!("a fault of the provider"),
            _ => self.inner.ping().await,
        }
    }

    fn configure_node(&self, node: &mut NodeTemplate) {
        self.inner.configure_node(node);
        match self.fault {
            Fault::CountsDescriptions => {
                let mut memory = self.memory.lock().unwrap();
                memory.descriptions += 1;
                node.labels.insert("described".into(), memory.descriptions.to_string());
            }
            Fault::HasNoMemory => {
                node.capacity.remove("memory");
                node.allocatable.remove("memory");
            }
            Fault::OffersMoreThanThereIs => {
                node.allocatable.insert("cpu".into(), Quantity::units(1000));
            }
            Fault::SetsReady => node.set_condition(Condition {
                kind: "Ready".into(),
                status: ConditionStatus::True,
                reason: "Fine".into(),
                message: "it is ready".into(),
            }),
            _ => {}
        }
    }

    fn logs(&self) -> Option<&dyn Logs> {
        (!self.has(Fault::HasNoLogs)).then_some(self)
    }

    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }

    fn attach(&self) -> Option<&dyn Attach> {
        Some(self)
    }

    fn port_forward(&self) -> Option<&dyn PortForward> {
        Some(self)
    }

    fn stats(&self) -> Option<&dyn Stats> {
        Some(self)
    }

    fn fit(&self) -> Option<&dyn Fit> {
        Some(self)
    }
}

/// What becomes of a change on its way out.
pub(super) type Bender = Box<dyn Fn(PodChange) -> Option<PodChange> + Send>;
