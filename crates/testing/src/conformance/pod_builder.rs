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
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
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
/// The Secret that the pods refer to: its name, a key, and the value.
pub const LOGIN: (&str, &str, &str) = ("conformance-login", "password", "correct-horse-battery-staple");
/// The pull secret of the pods: its name, the registry, and the password.
pub const PULL_SECRET: (&str, &str, &str) =
    ("conformance-pull", "https://index.docker.io/v1/", "tr0ub4dor-and-3");
/// The environment variable that [`PodBuilder::with_settings`] sets from the ConfigMap.
pub(crate) const VARIABLE: &str = "CONFORMANCE_COLOUR";
/// The environment variable that [`PodBuilder::with_secret`] sets.
pub(crate) const PASSWORD: &str = "CONFORMANCE_PASSWORD";
/// The environment variable that is the pod's address.
pub(crate) const ADDRESS: &str = "CONFORMANCE_IP";
/// The environment variable that contains it.
pub(crate) const URL: &str = "CONFORMANCE_URL";
/// The file of [`PodBuilder::with_files`] with a token.
pub(crate) const TOKEN_FILE: &str = "all/token";

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
    /// More fields of the first container.
    container_fields: Value,
    /// More fields of the spec.
    spec_fields: Value,
}

// === impl PodBuilder ===

impl<'a> PodBuilder<'a> {
    /// A pod with one container that runs until it is stopped.
    pub(super) fn new(context: &'a CaseContext) -> Self {
        let behavior =
            PodBehavior { containers: ContainerBehavior::UntilStopped, init: ContainerBehavior::Ends(0) };
        Self {
            context,
            name: None,
            behavior,
            restart: "Always",
            init: false,
            second: false,
            settings: false,
            container_fields: json!({}),
            spec_fields: json!({}),
        }
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

    /// Adds a variable from a Secret, and a pull secret.
    pub(crate) fn with_secret(self) -> Self {
        let (secret, key, _) = LOGIN;
        let source = json!({"secretKeyRef": {"name": secret, "key": key}});
        let container_fields = json!({"env": [{"name": PASSWORD, "valueFrom": source}]});
        let spec_fields = json!({"imagePullSecrets": [{"name": PULL_SECRET.0}]});
        Self { container_fields, spec_fields, ..self }
    }

    /// Adds a variable that is the pod's address, and one that contains it.
    pub(crate) fn with_address(self, inside: bool) -> Self {
        let source = json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}});
        let mut env = vec![json!({"name": ADDRESS, "valueFrom": source})];
        if inside {
            env.push(json!({"name": URL, "value": url(&format!("$({ADDRESS})"))}));
        }
        Self { container_fields: json!({"env": env}), ..self }
    }

    /// Adds a volume of every kind that has files from the API, each in its [`files_folder`].
    pub(crate) fn with_files(self) -> Self {
        let (map, colour, _) = SETTINGS;
        let (secret, password, _) = LOGIN;
        let volumes = json!([
            {"name": "map", "configMap": {"name": map, "defaultMode": 0o640}},
            {"name": "secret", "secret": {"secretName": secret, "defaultMode": 0o400}},
            {"name": "pod", "downwardAPI": {"defaultMode": 0o644, "items": [
                {"path": "name", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}, "mode": 0o600},
            ]}},
            {"name": "all", "projected": {"defaultMode": 0o444, "sources": [
                {"configMap": {"name": map, "items": [{"key": colour, "path": "nested/colour", "mode": 0o604}]}},
                {"secret": {"name": secret, "items": [{"key": password, "path": "password"}]}},
                {"serviceAccountToken": {"path": "token", "audience": "conformance", "expirationSeconds": 3600}},
            ]}},
        ]);
        let mounts = ["map", "secret", "pod", "all"]
            .map(|name| json!({"name": name, "mountPath": files_folder(name), "readOnly": true}));
        let container_fields = json!({"volumeMounts": mounts});
        Self { container_fields, spec_fields: json!({"volumes": volumes}), ..self }
    }

    pub(crate) fn build(self) -> Arc<Pod> {
        let uid = new_uid();
        let name = self.name.unwrap_or_else(|| format!("conformance-{}", &uid[..8]).into());
        let mut app = extended(&container(APP, self.behavior.containers), &self.container_fields);
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
            spec: Some(extended(
                &PodSpec {
                    init_containers: self.init.then(|| vec![container(INIT, self.behavior.init)]),
                    containers,
                    volumes,
                    restart_policy: Some(self.restart.to_owned()),
                    termination_grace_period_seconds: Some(30),
                    automount_service_account_token: Some(false),
                    node_name: Some(NODE.to_owned()),
                    ..PodSpec::default()
                },
                &self.spec_fields,
            )),
            status: Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() }),
        };
        self.context.subject().configure_pod(&mut pod, &self.behavior);
        self.context.made(reference(&pod));
        Arc::new(pod)
    }
}

/// The path of a volume of [`PodBuilder::with_files`], or of a file in it, in the container.
pub(crate) fn files_folder(path: &str) -> String {
    format!("/etc/conformance-files/{path}")
}

/// A value that contains the pod's address.
pub(crate) fn url(ip: &str) -> String {
    format!("http://{ip}:80/")
}

/// An object with more fields.
fn extended<T: Serialize + DeserializeOwned>(object: &T, fields: &Value) -> T {
    let mut extended = json!(object);
    for (name, value) in fields.as_object().into_iter().flatten() {
        extended[name] = value.clone();
    }
    serde_json::from_value(extended).expect("invariant: the fields of the suite are valid")
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
