//! The cases of the corpus: a pod with the objects that it refers to.

use std::path::{Path, PathBuf};

use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

/// An image whose entry point prints its environment and arguments.
pub(super) const IMAGE: &str = "vk.test/probe:1";
/// The image's entry point.
pub(super) const ENTRY_POINT: &str = "/probe";
/// The node that all pods are bound to.
pub(super) const NODE: &str = "peer";

/// A pod and what it refers to.
pub(super) struct Case {
    pub(super) name: String,
    /// Objects, in creation order.
    pub(super) objects: Vec<(ApiResource, DynamicObject)>,
    pub(super) pod: Value,
    /// Ephemeral containers, which are added after the creation of the pod.
    pub(super) added: Option<Value>,
}

// === impl Case ===

impl Case {
    /// All cases, by name.
    pub(super) fn all() -> Vec<Self> {
        let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
        let mut cases: Vec<Self> = files.map(|file| Self::read(&file)).collect();
        cases.sort_by(|one, other| one.name.cmp(&other.name));
        cases
    }

    fn read(file: &Path) -> Self {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(file).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
            .unwrap_or_else(|error| panic!("{} is no YAML: {error}", file.display()));
        let (mut objects, mut pod) = (Vec::new(), None);
        for document in documents {
            if document["kind"] == "Pod" {
                assert!(pod.is_none(), "{}: more than one Pod", file.display());
                pod = Some(complete(document, &name));
            } else {
                objects.push(object(document));
            }
        }
        let mut pod = pod.unwrap_or_else(|| panic!("{}: no Pod", file.display()));
        let added = pod["spec"].as_object_mut().unwrap().remove("ephemeralContainers");
        Self { name, objects, pod, added: added.filter(|added| !added.is_null()) }
    }

    /// Whether the result depends on the size of the machine.
    #[cfg(feature = "e2e")]
    pub(super) fn depends_on_the_machine(&self) -> bool {
        self.name.contains("of-the-node")
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kubelet/corpus")
}

/// Adds the common parts, so that a case only has what it is about.
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
    unless_set("restartPolicy", json!("Never"));
    unless_set("terminationGracePeriodSeconds", json!(0));
    unless_set("automountServiceAccountToken", json!(false));
    let mounts: Vec<Value> = spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|volume| json!({"name": volume["name"], "mountPath": format!("/v/{}", volume["name"].as_str().unwrap())}))
        .collect();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            container["image"] = json!(IMAGE);
            container["imagePullPolicy"] = json!("Never");
            container["volumeMounts"] = json!(mounts);
        }
    }
    pod
}

fn object(mut object: Value) -> (ApiResource, DynamicObject) {
    let kind = object["kind"].as_str().unwrap().to_owned();
    let (group, version) = match kind.as_str() {
        "ConfigMap" | "Secret" | "Service" | "ServiceAccount" => ("", "v1"),
        "ClusterTrustBundle" => ("certificates.k8s.io", "v1beta1"),
        other => panic!("the corpus knows no kind {other}"),
    };
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        plural: format!("{}s", kind.to_lowercase()),
        kind,
    };
    object["apiVersion"] = json!(resource.api_version);
    for field in ["data", "stringData"] {
        for value in object[field].as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
            if value == "{1 MiB}" {
                *value = json!("0123456789abcde\n".repeat(1 << 16));
            }
        }
    }
    // Indexing created missing fields.
    object.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    (resource, serde_json::from_value(object).unwrap())
}
