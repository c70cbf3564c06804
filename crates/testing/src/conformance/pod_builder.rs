//! Builds the pods of the cases, as the API server would return them.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ConfigMapKeySelector, ConfigMapVolumeSource, Container, EnvVar, EnvVarSource, Pod, PodSpec,
        PodStatus, Volume, VolumeMount,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use vk_provider::PodRef;

use super::{
    context::{CaseContext, NODE},
    subject::{ContainerBehavior, PodBehavior},
};

/// The name of the first regular container.
pub(crate) const APP: &str = "app";
/// The name of the init container.
pub(crate) const INIT: &str = "prepare";
/// The ConfigMap that the pods refer to: its name, a key, and the value.
pub const SETTINGS: (&str, &str, &str) = ("conformance", "colour", "blue");
/// The environment variable that [`PodBuilder::with_settings`] sets from it.
pub(crate) const VARIABLE: &str = "CONFORMANCE_COLOUR";

const IMAGE: &str = "busybox:1.37";
/// The creation time of the pods, in the past.
const CREATED: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// Builds a pod.
pub(crate) struct PodBuilder<'a> {
    context: &'a CaseContext,
    name: Option<Arc<str>>,
    behavior: PodBehavior,
    restart: &'static str,
    init: bool,
    second: bool,
    settings: bool,
}

// === impl PodBuilder ===

impl<'a> PodBuilder<'a> {
    /// A pod with one container that runs until it is stopped.
    pub(super) fn new(context: &'a CaseContext) -> Self {
        let behavior =
            PodBehavior { containers: ContainerBehavior::UntilStopped, init: ContainerBehavior::Ends(0) };
        Self { context, name: None, behavior, restart: "Always", init: false, second: false, settings: false }
    }

    /// Sets the name, which is unique by default.
    pub(crate) fn named(self, name: &Arc<str>) -> Self {
        Self { name: Some(Arc::clone(name)), ..self }
    }

    pub(crate) fn behaves(mut self, behavior: ContainerBehavior) -> Self {
        self.behavior.containers = behavior;
        self
    }

    pub(crate) fn restart(self, restart: &'static str) -> Self {
        Self { restart, ..self }
    }

    pub(crate) fn with_init(mut self, run: ContainerBehavior) -> Self {
        self.behavior.init = run;
        Self { init: true, ..self }
    }

    /// Adds a second regular container.
    pub(crate) fn with_second(self) -> Self {
        Self { second: true, ..self }
    }

    /// Adds a variable and a volume from a ConfigMap.
    pub(crate) fn with_settings(self) -> Self {
        Self { settings: true, ..self }
    }

    pub(crate) fn build(self) -> Arc<Pod> {
        let uid = new_uid();
        let name = self.name.unwrap_or_else(|| format!("conformance-{}", &uid[..8]).into());
        let mut app = container(APP, self.behavior.containers);
        let mut volumes = None;
        if self.settings {
            let (map, key, _) = SETTINGS;
            let selector = ConfigMapKeySelector { name: map.to_owned(), key: key.to_owned(), optional: None };
            let source = EnvVarSource { config_map_key_ref: Some(selector), ..EnvVarSource::default() };
            app.env = Some(vec![EnvVar { name: VARIABLE.to_owned(), value: None, value_from: Some(source) }]);
            app.volume_mounts = Some(vec![VolumeMount {
                name: map.to_owned(),
                mount_path: "/etc/conformance".to_owned(),
                ..VolumeMount::default()
            }]);
            let source = ConfigMapVolumeSource { name: map.to_owned(), ..ConfigMapVolumeSource::default() };
            volumes =
                Some(vec![Volume { name: map.to_owned(), config_map: Some(source), ..Volume::default() }]);
        }
        let mut containers = vec![app];
        if self.second {
            containers.push(container("beside", self.behavior.containers));
        }
        let mut pod = Pod {
            metadata: ObjectMeta {
                namespace: Some("default".to_owned()),
                name: Some(name.to_string()),
                uid: Some(uid),
                creation_timestamp: Some(Time(CREATED)),
                generation: Some(1),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                init_containers: self.init.then(|| vec![container(INIT, self.behavior.init)]),
                containers,
                volumes,
                restart_policy: Some(self.restart.to_owned()),
                termination_grace_period_seconds: Some(30),
                automount_service_account_token: Some(false),
                node_name: Some(NODE.to_owned()),
                ..PodSpec::default()
            }),
            status: Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() }),
        };
        self.context.subject().configure_pod(&mut pod, &self.behavior);
        self.context.made(reference(&pod));
        Arc::new(pod)
    }
}

/// A container with a command for this behaviour.
pub(crate) fn container(name: &str, run: ContainerBehavior) -> Container {
    let script = match run {
        ContainerBehavior::UntilStopped => {
            "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done".to_owned()
        }
        ContainerBehavior::UntilKilled => "trap '' TERM; echo up; while :; do sleep 0.1; done".to_owned(),
        ContainerBehavior::Ends(code) => format!("echo up; sleep 0.5; exit {code}"),
    };
    Container {
        name: name.to_owned(),
        image: Some(IMAGE.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(["sh", "-c", &script].map(str::to_owned).into()),
        ..Container::default()
    }
}

/// A unique UID, also on a backend that other runs of the suite share.
fn new_uid() -> String {
    let bits = format!("{:032x}", rand::random::<u128>());
    format!("{}-{}-{}-{}-{}", &bits[..8], &bits[8..12], &bits[12..16], &bits[16..20], &bits[20..])
}

/// The identity of a pod.
pub(crate) fn reference(pod: &Pod) -> PodRef {
    PodRef::of(pod).expect("invariant: the pods of the suite have a namespace, a name and a UID")
}

/// A changed copy of the pod.
pub(crate) fn changed(pod: &Pod, change: impl FnOnce(&mut Pod)) -> Arc<Pod> {
    let mut pod = pod.clone();
    change(&mut pod);
    Arc::new(pod)
}
