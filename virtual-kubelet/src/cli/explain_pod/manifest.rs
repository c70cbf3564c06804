//! Pods and pod templates in manifests.

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Map, Value, json};

use crate::config::Problem;

/// Where objects have a pod template, by path, and the path from there to a spec.
const TEMPLATES: [&[&str]; 3] =
    [&["spec", "template"], &["spec", "jobTemplate", "spec", "template"], &["template"]];
/// Maps of quantities in a pod spec. YAML has numbers there, which the API server accepts.
const QUANTITY_MAPS: [&str; 3] = ["limits", "requests", "overhead"];
/// Quantities in a pod spec.
const QUANTITIES: [&str; 2] = ["sizeLimit", "divisor"];

/// A pod, or an object that makes pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    /// Its kind.
    pub(super) kind: String,
    /// Its namespace.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// The pod, or one as its controller would make it.
    pub(super) pod: Pod,
}

/// What a file contains.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Manifest {
    /// Everything that is or makes pods.
    pub(super) workloads: Vec<Workload>,
    /// Everything else: kind and name.
    pub(super) others: Vec<String>,
}

/// Reads the documents of a file. `source` is its name, for errors.
pub(super) fn parse(text: &str, source: &str, namespace: &str) -> Result<Manifest, Vec<Problem>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        let error = error.to_string();
        vec![Problem::new(source, vk_provider::config::explain(&error))]
    })?;
    let mut reader = Reader { namespace, manifest: Manifest::default(), problems: Vec::new() };
    let several = documents.iter().filter(|document| !document.is_null()).count() > 1;
    for (number, document) in (1..).zip(&documents).filter(|(_, document)| !document.is_null()) {
        let at = if several { format!("{source}: document {number}") } else { source.to_owned() };
        reader.read(&at, document);
    }
    let Reader { manifest, problems, .. } = reader;
    if problems.is_empty() { Ok(manifest) } else { Err(problems) }
}

struct Reader<'a> {
    namespace: &'a str,
    manifest: Manifest,
    problems: Vec<Problem>,
}

// === impl Reader ===

impl Reader<'_> {
    fn read(&mut self, at: &str, object: &Value) {
        let Some(kind) = object["kind"].as_str().filter(|kind| !kind.is_empty()) else {
            let message =
                if object.is_object() { "`kind` is missing" } else { "is not an object of Kubernetes" };
            self.problems.push(Problem::new(at, message));
            return;
        };
        if let Some(items) = object["items"].as_array().filter(|_| kind.ends_with("List")) {
            for (index, item) in items.iter().enumerate() {
                self.read(&format!("{at}: items[{index}]"), item);
            }
            return;
        }
        let metadata = &object["metadata"];
        let generated = metadata["generateName"].as_str().map(|prefix| format!("{prefix}xxxxx"));
        let name = metadata["name"].as_str().map(ToOwned::to_owned).or(generated).unwrap_or_default();
        let namespace = metadata["namespace"].as_str().filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or(self.namespace).to_owned();
        let Some((path, template)) = template(kind, object) else {
            self.manifest.others.push(format!("{kind} {name}"));
            return;
        };
        let is_text = |key: &&str| metadata[*key].is_null() || metadata[*key].is_string();
        if let Some(key) = ["name", "generateName", "namespace"].into_iter().find(|key| !is_text(key)) {
            let message = format!("metadata.{key}: is not text: write it in quotes");
            self.problems.push(Problem::new(format!("{at}: {kind}"), message));
            return;
        }
        if name.is_empty() {
            self.problems.push(Problem::new(format!("{at}: {kind}"), "metadata.name: is missing"));
            return;
        }
        let at = format!("{at}: {kind} {namespace}/{name}");
        let prefix: String = path.iter().flat_map(|key| [*key, "."]).collect();
        match pod(template, &prefix) {
            Ok(mut pod) => {
                pod.metadata.namespace = Some(namespace.clone());
                pod.metadata.name = Some(pod_name(kind, &name));
                if kind == "StatefulSet" {
                    add_claims(&mut pod, object, &name);
                }
                self.manifest.workloads.push(Workload { kind: kind.to_owned(), namespace, name, pod });
            }
            Err(found) => {
                let found = found.into_iter().map(|(field, why)| Problem::new(format!("{at}: {field}"), why));
                self.problems.extend(found);
            }
        }
    }
}

/// The pod or the pod template of an object, with its path.
fn template<'a>(kind: &str, object: &'a Value) -> Option<(&'static [&'static str], &'a Value)> {
    if kind == "Pod" {
        return Some((&[], object));
    }
    TEMPLATES.iter().find_map(|path| {
        let found = path.iter().try_fold(object, |value, key| value.get(key))?;
        found["spec"]["containers"].is_array().then_some((*path, found))
    })
}

/// The name that a controller gives its first pod; `x` stands for what is random.
fn pod_name(kind: &str, name: &str) -> String {
    match kind {
        "Pod" => name.to_owned(),
        "StatefulSet" => format!("{name}-0"),
        "Deployment" => format!("{name}-xxxxxxxxxx-xxxxx"),
        "CronJob" => format!("{name}-00000000-xxxxx"),
        _ => format!("{name}-xxxxx"),
    }
}

/// The volumes that a StatefulSet adds to its pods.
fn add_claims(pod: &mut Pod, object: &Value, name: &str) {
    let claims = object["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    let names = claims.filter_map(|claim| claim["metadata"]["name"].as_str());
    let volumes = names.filter_map(|claim| {
        let source =
            json!({"name": claim, "persistentVolumeClaim": {"claimName": format!("{claim}-{name}-0")}});
        serde_json::from_value(source).ok()
    });
    if let Some(spec) = &mut pod.spec {
        let volumes: Vec<_> = volumes.collect();
        if !volumes.is_empty() {
            spec.volumes.get_or_insert_default().extend(volumes);
        }
    }
}

/// Reads a pod strictly: what the API server would refuse or lose is an error, with the field.
fn pod(template: &Value, prefix: &str) -> Result<Pod, Vec<(String, String)>> {
    let mut metadata = template["metadata"].clone();
    if metadata.is_null() {
        metadata = json!({});
    }
    let mut spec = template["spec"].clone();
    if !spec.is_object() {
        return Err(vec![(format!("{prefix}spec"), "is missing".to_owned())]);
    }
    quantities_as_text(&mut spec);
    let metadata: ObjectMeta = read(&metadata, &format!("{prefix}metadata"))?;
    let mut spec: PodSpec = read(&spec, &format!("{prefix}spec"))?;
    default_requests(&mut spec);
    let missing = missing_fields(&spec, prefix);
    if missing.is_empty() { Ok(Pod { metadata, spec: Some(spec), status: None }) } else { Err(missing) }
}

/// Adds requests for resources that only have a limit, as the API server does: they decide about the size.
fn default_requests(spec: &mut PodSpec) {
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let Some(resources) = &mut container.resources else { continue };
        let Some(limits) = resources.limits.clone() else { continue };
        let requests = resources.requests.get_or_insert_default();
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn missing_fields(spec: &PodSpec, prefix: &str) -> Vec<(String, String)> {
    let mut missing = Vec::new();
    if spec.containers.is_empty() {
        missing.push((format!("{prefix}spec.containers"), "is missing or empty".to_owned()));
    }
    let mut check = |list: &str, containers: &[Container]| {
        for (index, container) in containers.iter().enumerate() {
            if container.name.is_empty() {
                missing.push((format!("{prefix}spec.{list}[{index}].name"), "is missing".to_owned()));
            }
        }
    };
    check("initContainers", spec.init_containers.as_deref().unwrap_or_default());
    check("containers", &spec.containers);
    missing
}

/// Reads a value of the API. Errors have their path.
fn read<T>(value: &Value, path: &str) -> Result<T, Vec<(String, String)>>
where
    T: serde::de::DeserializeOwned + serde::Serialize,
{
    let typed: T = serde_path_to_error::deserialize(value).map_err(|error| {
        let inner = error.path().to_string();
        let field = if inner == "." { path.to_owned() } else { format!("{path}.{inner}") };
        vec![(field, error.inner().to_string())]
    })?;
    let mut unknown = Vec::new();
    let kept = serde_json::to_value(&typed).unwrap_or_default();
    unknown_fields(value, &kept, path, &mut unknown);
    let problem = |field| (field, "is not a field of this API version".to_owned());
    if unknown.is_empty() { Ok(typed) } else { Err(unknown.into_iter().map(problem).collect()) }
}

/// Finds the keys of a value that its typed form does not have.
fn unknown_fields(given: &Value, kept: &Value, path: &str, unknown: &mut Vec<String>) {
    let is_empty = |value: &Value| {
        value.is_null()
            || value.as_object().is_some_and(Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty)
    };
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                let path = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => unknown_fields(value, kept, &path, unknown),
                    // An empty value means the same as none.
                    None if is_empty(value) => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            for (index, (given, kept)) in given.iter().zip(kept).enumerate() {
                unknown_fields(given, kept, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Writes quantities that are numbers as text, as the API server reads them.
fn quantities_as_text(value: &mut Value) {
    let to_text = |value: &mut Value| {
        if let Value::Number(number) = value {
            *value = number.to_string().into();
        }
    };
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::Object(inner) if QUANTITY_MAPS.contains(&key.as_str()) => {
                        inner.values_mut().for_each(to_text);
                    }
                    value if QUANTITIES.contains(&key.as_str()) => to_text(value),
                    value => quantities_as_text(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quantities_as_text),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
