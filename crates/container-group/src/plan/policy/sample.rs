//! Pods with a single field set, for tests that hold a field policy against a translator.
//!
//! For each row there is a [`Sample`]: a pod, and the same pod with the field of the row. A translator that agrees with the table
//! makes different requests of them, warns, or refuses, as the row says.

mod resolved;
mod value;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

pub use self::resolved::resolved;
use super::{PolicyTable, Row, api_fields::api_fields};

/// A pod without and with the field of a row.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The row.
    pub row: &'static Row,
    /// The path of the field in `changed`.
    pub path: String,
    /// A pod without the field, or with another value if it is mandatory.
    pub base: Pod,
    /// The same pod with the field.
    pub changed: Pod,
}

impl PolicyTable {
    /// A sample for each row. Panics if the sample of a row is not a value of its field.
    pub fn samples(&self) -> Vec<Sample> {
        self.rows.iter().map(sample).collect()
    }
}

/// Where the fields of a type are set in a sample: a pointer into the pod, and the path.
struct Place {
    pointer: &'static str,
    path: &'static str,
}

fn place(api_type: &str) -> Place {
    let (pointer, path) = match api_type {
        "PodSpec" => ("/spec", "spec"),
        "PodSecurityContext" => ("/spec/securityContext", "spec.securityContext"),
        "Container" => ("/spec/containers/0", "spec.containers[web]"),
        "SecurityContext" => ("/spec/containers/0/securityContext", "spec.containers[web].securityContext"),
        "Probe" => ("/spec/containers/0/livenessProbe", "spec.containers[web].livenessProbe"),
        "Lifecycle" => ("/spec/containers/0/lifecycle", "spec.containers[web].lifecycle"),
        "LifecycleHandler" => {
            ("/spec/containers/0/lifecycle/preStop", "spec.containers[web].lifecycle.preStop")
        }
        "Volume" => ("/spec/volumes/0", "spec.volumes[data]"),
        "VolumeMount" => ("/spec/containers/0/volumeMounts/0", "spec.containers[web].volumeMounts[/data]"),
        other => panic!("{other} is not a type of the table"),
    };
    Place { pointer, path }
}

fn sample(row: &'static Row) -> Sample {
    let (api_type, field) = row.field.split_once('.').expect("a row names a type and a field");
    let Place { pointer, path } = place(api_type);
    let mut base = base_pod(row.field);
    let mut changed = base.clone();
    let segments: Vec<_> = field.split('.').collect();
    let (last, parents) = segments.split_last().expect("a row names a field");
    // The objects between the type and the field.
    let mut at = pointer.to_owned();
    let mut key = api_type.to_owned();
    for parent in parents {
        key = format!("{key}.{parent}");
        at = format!("{at}/{parent}");
        let list =
            api_fields().shape(&key).is_some_and(|shape| matches!(shape, super::api_fields::Shape::List(_)));
        let value = value::of_field(&key, &[]);
        for pod in [&mut base, &mut changed] {
            set(pod, &at, value.clone());
        }
        if list {
            at.push_str("/0");
        }
    }
    if !parents.is_empty() {
        base = completed(&base, &at);
        changed = completed(&changed, &at);
        // The parent's own sample may have the field.
        if let Some(Value::Object(parent)) = base.pointer_mut(&at) {
            parent.remove(*last);
        }
        set_if_mandatory(&mut base, &at, last);
    }
    let value = row.sample.map_or_else(
        || value::of_field(row.field, row.harmless),
        |json| serde_json::from_str(json).expect("the sample of a row is JSON"),
    );
    apply(&mut changed, row.field, &format!("{at}/{last}"), value);
    let pod = |value: Value, what: &str| -> Pod {
        serde_json::from_value(value).unwrap_or_else(|error| panic!("{what} of {}: {error}", row.field))
    };
    // In paths, names take the place of indices.
    let path = match row.field {
        "Volume.name" => "spec.volumes[other].name".to_owned(),
        "Container.name" => "spec.containers[other].name".to_owned(),
        _ => format!("{path}.{field}"),
    };
    Sample { row, path, base: pod(base, "the pod without"), changed: pod(changed, "the pod with") }
}

/// The pod that a field is added to: with what the field needs to mean anything.
fn base_pod(field: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "sample", "namespace": "shop", "uid": "5f3b7f1e-98a3-4c1d-8d6e-0d1a2b3c4d5e"},
        "spec": {"containers": [{"name": "web", "image": "registry.example/web:1"}]},
    });
    let volume = json!([{"name": "data", "emptyDir": {}}]);
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let container = "/spec/containers/0";
    match field.split('.').collect::<Vec<_>>()[..] {
        // With a parent, that is set later.
        ["Volume", _, _, ..] => {
            set(&mut pod, "/spec/volumes", json!([{"name": "data"}]));
            set(&mut pod, &format!("{container}/volumeMounts"), mount);
        }
        ["VolumeMount", "name" | "mountPath"] | ["Container", "volumeMounts"] => {
            set(&mut pod, "/spec/volumes", volume);
        }
        ["VolumeMount", ..] | ["Volume", "name"] => {
            set(&mut pod, "/spec/volumes", volume);
            set(&mut pod, &format!("{container}/volumeMounts"), mount);
        }
        ["Probe", "exec" | "grpc" | "httpGet" | "tcpSocket", ..] => {}
        ["Probe", ..] | ["Container", "startupProbe"] => {
            set(&mut pod, &format!("{container}/livenessProbe"), json!({"tcpSocket": {"port": 8080}}));
        }
        _ => {}
    }
    pod
}

/// Sets the field, and what must change with it.
fn apply(pod: &mut Value, field: &str, at: &str, value: Value) {
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let mounts = "/spec/containers/0/volumeMounts";
    match field.split('.').collect::<Vec<_>>()[..] {
        ["Volume", "name"] => {
            set(pod, at, json!("other"));
            set(pod, &format!("{mounts}/0/name"), json!("other"));
        }
        ["Volume", _] => {
            set(pod, "/spec/volumes", json!([{"name": "data"}]));
            set(pod, at, value);
            complete_at(pod, at);
            set(pod, mounts, mount);
        }
        ["PodSpec", "volumes"] => {
            set(pod, at, json!([{"name": "data", "emptyDir": {}}]));
            set(pod, mounts, mount);
        }
        ["VolumeMount", "name" | "mountPath"] | ["Container", "volumeMounts"] => set(pod, mounts, mount),
        ["PodSpec", "containers"] => {
            let second = json!({"name": "second", "image": "registry.example/second:1"});
            if let Some(Value::Array(containers)) = pod.pointer_mut(at) {
                containers.push(second);
            }
        }
        _ => {
            set(pod, at, value);
            complete_at(pod, at);
        }
    }
}

/// Gives a field that cannot be left out another value than the sample has.
fn set_if_mandatory(pod: &mut Value, at: &str, field: &str) {
    let typed: Pod = serde_json::from_value(pod.clone()).expect("a sample is a pod");
    let typed = serde_json::to_value(typed).expect("a pod can be written");
    let other = match typed.pointer(&format!("{at}/{field}")) {
        Some(Value::String(_)) => json!("base"),
        Some(Value::Number(_)) => json!(9090),
        _ => return,
    };
    set(pod, &format!("{at}/{field}"), other);
}

fn complete_at(pod: &mut Value, at: &str) {
    *pod = completed(pod, at);
}

/// The pod with all mandatory fields of the object at a pointer: the API types write them, empty, and here they get a value.
fn completed(pod: &Value, at: &str) -> Value {
    let typed: Pod = serde_json::from_value(pod.clone()).expect("a sample is a pod");
    let mut pod = serde_json::to_value(typed).expect("a pod can be written");
    if let Some(object) = pod.pointer_mut(at) {
        value::fill(object);
    }
    pod
}

/// Sets a value; objects above it are made.
fn set(pod: &mut Value, pointer: &str, value: Value) {
    let mut at = pod;
    for segment in pointer.split('/').skip(1) {
        at = match at {
            Value::Array(items) => {
                let index: usize = segment.parse().expect("an index");
                while items.len() <= index {
                    items.push(json!({}));
                }
                &mut items[index]
            }
            object => &mut object[segment],
        };
    }
    *at = value;
}
