//! A client for the namespace of a test in one cluster.

use std::time::Duration;

use http::Request;
use kube::Client;
use serde_json::{Value, json};
use vk_testing::{ControlPlane, Output, eventually, kubectl};

/// Long enough for a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_mins(2);

/// API paths of the resources, and whether they are namespaced.
const RESOURCES: [(&str, &str, bool); 25] = [
    ("configmaps", "api/v1", true),
    ("endpoints", "api/v1", true),
    ("events", "api/v1", true),
    ("limitranges", "api/v1", true),
    ("namespaces", "api/v1", false),
    ("nodes", "api/v1", false),
    ("persistentvolumeclaims", "api/v1", true),
    ("persistentvolumes", "api/v1", false),
    ("pods", "api/v1", true),
    ("resourcequotas", "api/v1", true),
    ("secrets", "api/v1", true),
    ("serviceaccounts", "api/v1", true),
    ("services", "api/v1", true),
    ("daemonsets", "apis/apps/v1", true),
    ("deployments", "apis/apps/v1", true),
    ("replicasets", "apis/apps/v1", true),
    ("statefulsets", "apis/apps/v1", true),
    ("cronjobs", "apis/batch/v1", true),
    ("jobs", "apis/batch/v1", true),
    ("poddisruptionbudgets", "apis/policy/v1", true),
    ("certificatesigningrequests", "apis/certificates.k8s.io/v1", false),
    ("mutatingwebhookconfigurations", "apis/admissionregistration.k8s.io/v1", false),
    ("priorityclasses", "apis/scheduling.k8s.io/v1", false),
    ("runtimeclasses", "apis/node.k8s.io/v1", false),
    ("storageclasses", "apis/storage.k8s.io/v1", false),
];

/// A namespace of a cluster, with the permissions of an administrator.
#[derive(Clone)]
pub(super) struct NamespaceClient<'a> {
    pub(super) cluster: &'a ControlPlane,
    pub(super) namespace: String,
    client: Client,
}

impl<'a> NamespaceClient<'a> {
    pub(super) fn new(cluster: &'a ControlPlane, namespace: &str) -> Self {
        Self { cluster, namespace: namespace.to_owned(), client: cluster.admin().unwrap() }
    }

    /// The path of `KIND` or `KIND/NAME`.
    fn path(&self, what: &str) -> String {
        let (kind, name) = what.split_once('/').map_or((what, ""), |(kind, name)| (kind, name));
        let place = RESOURCES.iter().find(|place| place.0 == kind);
        let (_, prefix, namespaced) = place.unwrap_or_else(|| panic!("where are {kind}?"));
        let within = if *namespaced { format!("namespaces/{}/", self.namespace) } else { String::new() };
        let slash = if name.is_empty() { "" } else { "/" };
        format!("/{prefix}/{within}{kind}{slash}{name}")
    }

    async fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> kube::Result<Value> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("Content-Type", kind).body(body);
        self.client.request(request.unwrap()).await
    }

    /// The object `KIND/NAME`, if it exists.
    pub(super) async fn find(&self, what: &str) -> Option<Value> {
        match self.send("GET", &self.path(what), "application/json", &Value::Null).await {
            Ok(found) => Some(found),
            Err(kube::Error::Api(status)) if status.is_not_found() => None,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// An object that must exist.
    #[track_caller]
    pub(super) fn get(&self, what: &str) -> impl Future<Output = Value> {
        let (caller, what) = (std::panic::Location::caller(), what.to_owned());
        async move { self.find(&what).await.unwrap_or_else(|| panic!("no {what} (at {caller})")) }
    }

    /// All objects of a kind.
    pub(super) async fn list(&self, kind: &str) -> Vec<Value> {
        self.try_list(kind).await.unwrap()
    }

    /// All objects of a kind, or why there is no answer.
    pub(super) async fn try_list(&self, kind: &str) -> kube::Result<Vec<Value>> {
        let list = self.send("GET", &self.path(kind), "application/json", &Value::Null).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Creates an object, or returns the error of the API server.
    pub(super) async fn try_create(&self, kind: &str, object: &Value) -> kube::Result<Value> {
        self.send("POST", &self.path(kind), "application/json", object).await
    }

    /// Creates an object.
    pub(super) async fn create(&self, kind: &str, object: &Value) -> Value {
        let made = self.try_create(kind, object).await;
        made.unwrap_or_else(|error| panic!("{kind}: {error}: {object}"))
    }

    /// Patches an object.
    pub(super) async fn patch(&self, what: &str, patch: &Value) -> Value {
        let sent = self.send("PATCH", &self.path(what), "application/merge-patch+json", patch).await;
        sent.unwrap_or_else(|error| panic!("{what}: {error}: {patch}"))
    }

    /// Replaces an object, with its resource version.
    pub(super) async fn replace(&self, what: &str, object: &Value) -> Value {
        let sent = self.send("PUT", &self.path(what), "application/json", object).await;
        sent.unwrap_or_else(|error| panic!("{what}: {error}: {object}"))
    }

    /// Deletes an object, immediately with a grace period of 0.
    pub(super) async fn delete(&self, what: &str, grace: Option<u32>) {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace,
            "propagationPolicy": "Background"});
        let sent = self.send("DELETE", &self.path(what), "application/json", &options).await;
        sent.unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    /// Waits until an object satisfies a condition.
    pub(super) async fn wait_for(&self, what: &str, wish: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let wanted = &wanted;
        eventually(&format!("{what}: {wish}"), TIMEOUT, || async move {
            let Some(found) = self.find(what).await else { return Err("it is not there".to_owned()) };
            if wanted(&found) { Ok(found) } else { Err(found.to_string()) }
        })
        .await
    }

    /// Waits until an object exists.
    pub(super) async fn wait_exists(&self, what: &str) -> Value {
        self.wait_for(what, "is there", |_| true).await
    }

    /// Waits until an object is deleted.
    pub(super) async fn wait_deleted(&self, what: &str) {
        eventually(&format!("{what}: is gone"), TIMEOUT, || async {
            self.find(what).await.map_or(Ok(()), |found| Err(found.to_string()))
        })
        .await;
    }

    /// Waits until a pod is running and Ready.
    pub(super) async fn wait_running(&self, pod: &str) -> Value {
        self.wait_for(&format!("pods/{pod}"), "runs and is Ready", |pod| {
            pod["status"]["phase"] == "Running" && condition(pod, "Ready")["status"] == "True"
        })
        .await
    }

    /// Waits until a pod is in this phase.
    pub(super) async fn wait_phase(&self, pod: &str, phase: &str) -> Value {
        self.wait_for(&format!("pods/{pod}"), phase, |pod| pod["status"]["phase"] == phase).await
    }

    /// Events about an object, in the order of the API server.
    pub(super) async fn events(&self, name: &str) -> Vec<Value> {
        let all = self.list("events").await;
        all.into_iter().filter(|event| event["involvedObject"]["name"] == name).collect()
    }

    /// Waits for an event about an object that contains all of these texts.
    pub(super) async fn wait_event(&self, name: &str, words: &[&str]) -> Value {
        eventually(&format!("{name}: an event with {words:?}"), TIMEOUT, || async {
            let events = self.events(name).await;
            let said = |event: &Value| format!("{} {}", text(&event["reason"]), text(&event["message"]));
            let found = events.iter().find(|event| words.iter().all(|word| said(event).contains(word)));
            found.cloned().ok_or_else(|| format!("{:#?}", events.iter().map(said).collect::<Vec<_>>()))
        })
        .await
    }

    /// Runs kubectl in the namespace.
    pub(super) async fn try_kubectl(&self, words: &[&str]) -> Output {
        let mut all = vec!["--namespace", self.namespace.as_str()];
        all.extend(words);
        kubectl(self.cluster, all).await.unwrap()
    }

    /// Runs kubectl in the namespace, which must succeed.
    pub(super) async fn kubectl(&self, words: &[&str]) -> String {
        let output = self.try_kubectl(words).await;
        assert!(output.success(), "kubectl {words:?}: {output:?}");
        output.stdout
    }
}

/// A condition of an object; null if there is none of this type.
pub(super) fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// A string of an object; empty if it is none.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
