//! A pod of the corpus, the objects that it refers to, and its steps.

use std::path::Path;

use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::{Step, runner::NODE};
use crate::host::image::BUSYBOX;

/// A pod and its steps.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name of the file and of the pod.
    pub name: String,
    /// Objects in the order of their creation.
    pub objects: Vec<(ApiResource, DynamicObject)>,
    /// The pod.
    pub pod: Value,
    /// Its steps.
    pub steps: Vec<Step>,
}

// === impl Case ===

impl Case {
    /// Reads all cases of a folder, sorted by name, and replaces placeholders in braces.
    pub fn all(folder: &Path, placeholders: &[(&str, String)]) -> Vec<Self> {
        let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let files = files.map(|entry| entry.expect("the folder can be read").path());
        let mut cases: Vec<Self> = files.map(|file| Self::read(&file, placeholders)).collect();
        cases.sort_by(|one, other| one.name.cmp(&other.name));
        cases
    }

    fn read(file: &Path, placeholders: &[(&str, String)]) -> Self {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let text = placeholders.iter().fold(text, |text, (name, value)| text.replace(name, value));
        let text = text.replace("{pod}", &name);
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
            .unwrap_or_else(|error| panic!("{}: invalid YAML: {error}", file.display()));
        let (mut objects, mut pod, mut steps) = (Vec::new(), None, None);
        for mut document in documents {
            match document["kind"].as_str() {
                Some("Pod") => pod = Some(complete(document, &name)),
                Some("Steps") => {
                    let list = serde_json::from_value(document["steps"].take());
                    steps = Some(list.unwrap_or_else(|error| panic!("{}: steps: {error}", file.display())));
                }
                _ => objects.push(object(document)),
            }
        }
        let (Some(pod), Some(steps)) = (pod, steps) else {
            panic!("{}: needs a Pod and Steps", file.display());
        };
        let steps: Vec<Step> = steps;
        assert!(steps.iter().any(|step| matches!(step, Step::Reach(_))), "{}: no checkpoint", file.display());
        Self { name, objects, pod, steps }
    }
}

/// Adds the fields that all pods share, so that a case contains only what matters.
fn complete(mut pod: Value, name: &str) -> Value {
    pod["apiVersion"] = json!("v1");
    pod["metadata"]["name"] = json!(name);
    let spec = &mut pod["spec"];
    let mut unless_set = |field: &str, value: Value| {
        if spec.get(field).is_none() {
            spec[field] = value;
        }
    };
    unless_set("nodeName", json!(NODE));
    unless_set("automountServiceAccountToken", json!(false));
    unless_set("enableServiceLinks", json!(false));
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            complete_container(container);
        }
    }
    pod
}

pub(super) fn complete_container(container: &mut Value) {
    if container.get("image").is_none() {
        container["image"] = json!(BUSYBOX);
    }
}

/// Parses an object and its resource.
pub(super) fn object(mut object: Value) -> (ApiResource, DynamicObject) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let (group, version) = match kind.as_str() {
        "ConfigMap"
        | "Secret"
        | "Service"
        | "ServiceAccount"
        | "PersistentVolume"
        | "PersistentVolumeClaim" => ("", "v1"),
        "RuntimeClass" => ("node.k8s.io", "v1"),
        other => panic!("the corpus does not support kind {other}"),
    };
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        plural: if kind == "RuntimeClass" {
            "runtimeclasses".to_owned()
        } else {
            format!("{}s", kind.to_lowercase())
        },
        kind,
    };
    object["apiVersion"] = json!(resource.api_version);
    (resource, serde_json::from_value(object).expect("an object has metadata"))
}
