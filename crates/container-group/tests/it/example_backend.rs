//! The smallest complete backend, which `docs/guide/write-a-group-backend.md` walks through: a cloud that keeps its groups in memory, with
//! three sizes, files, and one field that it refuses.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use vk_container_group::{
    GroupBackend,
    backend::{
        CallResult, Caps, ContainerState, Creation, Deletion, GroupRef, GroupState, Health, Idempotency,
        Naming, Observed, ObservedContainer, Page, Plan, Rejection, ResolvedPod, Scope, TagLimits,
    },
    budget::{Budget, Limits},
    conformance::FixedResolver,
    engine::{Engine, Settings},
    identity,
    plan::{
        files::{self, FileLimits, VolumeFiles},
        policy::{Choices, Literal, PolicyTable, Row},
        size::{self, SizeRule, SizeTable},
    },
};
use vk_provider::{PodBundle, Provider as _, error::Kind, resolve::FileSet};
use vk_supervisor::{Clock, Supervisor};

// --- the backend ---

const SIZES: SizeRule = SizeRule::Table(SizeTable {
    rows: &[(500, &[1024, 2048]), (1000, &[2048, 4096])],
    default_cpu_milli: 500,
    default_memory_mib: 1024,
});
const FILES: FileLimits = FileLimits { file: 32 << 10, group: 60 << 10 };
/// A real table has a row for every field: `FIELDS.problems()` lists what is missing.
const FIELDS: PolicyTable = PolicyTable {
    cloud: "Memory",
    rows: &[
        Row::native("PodSpec.containers", "containers"),
        Row::native("PodSpec.volumes", "files"),
        Row::native("Container.name", "name"),
        Row::native("Container.image", "image"),
        Row::native("Container.resources", "size"),
        Row::native("Volume.name", "name"),
        Row::emulated("Volume.secret", "files of the group's creation"),
        Row::refused("PodSpec.hostNetwork", "groups have a network of their own: remove it")
            .unless(&[Literal::Bool(false)]),
    ],
};

/// What the cloud's API takes.
struct Request {
    containers: Vec<(String, String)>,
    files: Vec<VolumeFiles>,
}

/// A group in the cloud.
struct MemoryGroup {
    name: String,
    containers: Vec<String>,
    files: Vec<VolumeFiles>,
    tags: Vec<(String, String)>,
    created: Timestamp,
}

fn running(name: &str, since: Timestamp) -> ObservedContainer {
    ObservedContainer {
        name: name.to_owned(),
        state: Some(ContainerState::Running { started: Some(since) }),
        ready: Some(true),
        ..ObservedContainer::default()
    }
}

struct MemoryCloud {
    caps: Caps,
    clock: Clock,
    groups: Mutex<Vec<MemoryGroup>>,
}

impl MemoryCloud {
    fn new(clock: Clock) -> Self {
        let caps = Caps {
            // The name is the id, and the same name is the same group.
            naming: Naming::Chosen,
            idempotency: Idempotency::Name,
            // Lists are always up to date.
            consistency: Duration::ZERO,
            detail_batch: 100,
            tags: TagLimits { count: 20, key: 64, value: 128 },
            ..Caps::default()
        };
        Self { caps, clock, groups: Mutex::default() }
    }

    /// Only what the cloud says, and nothing guessed.
    fn observed(group: &MemoryGroup) -> Observed {
        let tags = group.tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Observed {
            owner: identity::read_tags(tags),
            complete: true,
            state: Some(GroupState::Running),
            containers: Some(group.containers.iter().map(|name| running(name, group.created)).collect()),
            created: Some(group.created),
            ..Observed::new(GroupRef::new(group.name.as_str(), group.name.as_str()))
        }
    }
}

#[async_trait]
impl GroupBackend for MemoryCloud {
    type Request = Request;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn translate(&self, pod: &ResolvedPod) -> Result<Plan<Request>, Rejection> {
        let mut diagnostics = FIELDS.review(&pod.pod, &Choices::default()).diagnostics();
        let size = size::group_size(&pod.pod, &SIZES, &mut diagnostics);
        let files = files::volumes(pod, &FILES, &mut diagnostics);
        let containers = pod.pod.spec.iter().flat_map(|spec| &spec.containers);
        let containers =
            containers.map(|one| (one.name.clone(), one.image.clone().unwrap_or_default())).collect();
        let mut plan = Plan::new(Request { containers, files });
        plan.size = size.map(|size| size.effective);
        diagnostics.finish(plan)
    }

    async fn create(&self, creation: &Creation<'_, Request>) -> CallResult<Option<GroupRef>> {
        let Request { containers, files } = &creation.plan.request;
        let mut groups = self.groups.lock();
        // A real backend makes one call here, and leaves it to the cloud to recognise a repeated one.
        if groups.iter().all(|group| group.name != creation.name) {
            groups.push(MemoryGroup {
                name: creation.name.to_owned(),
                containers: containers.iter().map(|(name, _image)| name.clone()).collect(),
                files: files.clone(),
                tags: creation.tags.to_vec(),
                created: self.clock.now(),
            });
        }
        Ok(Some(GroupRef::new(creation.name, creation.name)))
    }

    async fn observe(&self, scope: &Scope, _page: Option<&str>) -> CallResult<Page> {
        let groups = self.groups.lock();
        let all = groups.iter().map(Self::observed);
        let ours = all.filter(|one| one.owner.as_ref().is_some_and(|owner| scope.contains(owner)));
        Ok(Page { groups: ours.collect(), next: None, incomplete: false })
    }

    async fn detail(&self, asked: &[GroupRef]) -> CallResult<Vec<Observed>> {
        let groups = self.groups.lock();
        let is_asked = |group: &&MemoryGroup| asked.iter().any(|one| *one.id == *group.name);
        Ok(groups.iter().filter(is_asked).map(Self::observed).collect())
    }

    async fn delete(&self, group: &GroupRef, _grace: Duration) -> CallResult<Deletion> {
        self.groups.lock().retain(|one| *one.name != *group.name);
        Ok(Deletion::Gone)
    }

    async fn probe(&self) -> CallResult<Health> {
        Ok(Health::default())
    }
}

// --- its use ---

#[tokio::test(start_paused = true)]
async fn the_example_of_the_guide_runs_and_deletes_a_pod_and_refuses_another() {
    let supervisor = Supervisor::new();
    let total = vk_container_group::backend::Rate { per_second: 10.0, burst: 20.0 };
    let budget = Budget::new(&Limits { total, actions: BTreeMap::new() }, &supervisor);
    let settings = Settings::new("cluster", "node", "memory");
    let clock = Clock::following_tokio(Timestamp::from_second(1_800_000_000).unwrap());
    let cloud = Arc::new(MemoryCloud::new(clock.clone()));
    let engine = Engine::new(Arc::clone(&cloud), settings, budget, clock.clone(), &supervisor).unwrap();
    let vk_provider::Changes::Push(changes) = engine.changes() else { panic!("the engine pushes") };
    // The core reads the changes for as long as this process owns the node.
    supervisor.spawn("changes", vk_supervisor::task::Kind::Work, async move {
        futures::StreamExt::for_each(changes, |_| std::future::ready(())).await;
    });
    let bundle = |pod: &k8s_openapi::api::core::v1::Pod| PodBundle {
        pod: Arc::new(pod.clone()),
        resolver: Arc::new(FixedResolver::new(FileSet::default())),
    };
    let mut pod = vk_container_group::conformance::pod("web", 1, clock.now());
    engine.create_pod(bundle(&pod)).await.unwrap();
    let running = async {
        loop {
            let pods = engine.pods().await.unwrap();
            if pods.iter().any(|pod| pod.status.phase.as_deref() == Some("Running")) {
                return pods;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let pods = tokio::time::timeout(Duration::from_mins(1), running).await.expect("the pod runs");
    assert!(cloud.groups.lock()[0].files.is_empty());
    engine.delete_pod(&pods[0].pod, None, Duration::from_secs(30)).await.unwrap();
    assert!(cloud.groups.lock().is_empty());
    pod.metadata.uid = Some("00000000-0000-4000-8000-000000000002".to_owned());
    pod.spec.as_mut().unwrap().host_network = Some(true);
    let refused = engine.create_pod(bundle(&pod)).await.unwrap_err();
    assert_eq!(*refused.kind(), Kind::Invalid);
    assert!(refused.message().contains("spec.hostNetwork: groups have a network of their own"), "{refused}");
    supervisor.shut_down(Duration::ZERO).await;
}
