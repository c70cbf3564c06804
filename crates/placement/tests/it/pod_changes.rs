//! Changes that placement may make to pods, and those that it may not.

use serde_json::{Value, json};

const LABELS: &str = "placement may change only the label multicluster.virtual-kubelet.io/trial, not";
const ANNOTATIONS: &str = "placement may change only the annotations multicluster.virtual-kubelet.io/trial-until and \
    multicluster.virtual-kubelet.io/pinned, not";
const METADATA: &str = "placement may change only labels and annotations of the metadata, not";
const SPEC: &str = "placement may change only schedulingGates and nodeSelector of the spec, not";
const GATES: &str =
    "placement may only remove its own scheduling gate, multicluster.virtual-kubelet.io/placement";
const SELECTOR: &str = "placement may only add kubernetes.io/hostname to the node selector, not change";
const STATUS: &str = "placement may change only conditions and nominatedNodeName of the status, not";
const CONDITIONS: &str = "placement may change only the conditions multicluster.virtual-kubelet.io/Placed and \
    multicluster.virtual-kubelet.io/Scheduled";

const OWN_LABEL: &str = "/metadata/labels/multicluster.virtual-kubelet.io~1trial";
const OWN_ANNOTATION: &str = "/metadata/annotations/multicluster.virtual-kubelet.io~1trial-until";
const PINNED: &str = "/metadata/annotations/multicluster.virtual-kubelet.io~1pinned";
const HOSTNAME: &str = "/spec/nodeSelector/kubernetes.io~1hostname";

/// A change of a pod.
pub(crate) struct Change {
    /// The name of the pod.
    pub(crate) pod: &'static str,
    /// The subresource that is patched, or empty.
    pub(crate) subresource: &'static str,
    /// A JSON patch.
    pub(crate) patch: Value,
    /// What the denial says, if the guard refuses the change.
    message: &'static str,
    /// What it names after that.
    pub(crate) field: &'static str,
}

// === impl Change ===

impl Change {
    /// A change of a pod or of a subresource of it: `POD` or `POD/SUBRESOURCE`.
    fn new<const N: usize>(target: &'static str, operations: [Value; N]) -> Self {
        let (pod, subresource) = target.split_once('/').unwrap_or((target, ""));
        let patch = Value::Array(operations.into());
        Self { pod, subresource, patch, message: "", field: "" }
    }

    fn refused(self, message: &'static str, field: &'static str) -> Self {
        Self { message, field, ..self }
    }

    pub(crate) fn is_refused_by(&self, error: &str) -> bool {
        error.contains("'virtual-kubelet-placement-guard'")
            && error.split_once(self.message).is_some_and(|(_, fields)| fields.contains(self.field))
    }
}

fn set(path: &str, value: impl Into<Value>) -> Value {
    json!({"op": "add", "path": path, "value": value.into()})
}

fn replace(path: &str, value: impl Into<Value>) -> Value {
    json!({"op": "replace", "path": path, "value": value.into()})
}

fn remove(path: &str) -> Value {
    json!({"op": "remove", "path": path})
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "Test"})
}

/// What placement may change.
pub(crate) fn allowed() -> Vec<Change> {
    let placed = || condition("multicluster.virtual-kubelet.io/Placed");
    let scheduled = condition("multicluster.virtual-kubelet.io/Scheduled");
    vec![
        Change::new("waiting", [replace(OWN_LABEL, "b")]),
        Change::new("waiting", [remove(OWN_LABEL)]),
        Change::new("waiting", [set(PINNED, "true")]),
        Change::new("waiting", [replace(OWN_ANNOTATION, "b")]),
        Change::new("waiting", [remove(OWN_ANNOTATION)]),
        Change::new(
            "running",
            [set("/metadata/annotations", json!({"multicluster.virtual-kubelet.io/trial-until": "a"}))],
        ),
        Change::new("running", [set(OWN_LABEL, "a")]),
        Change::new("waiting", [remove("/spec/schedulingGates/1")]),
        Change::new("waiting", [set(HOSTNAME, "vk-a")]),
        // All at once, as before Kubernetes 1.35.
        Change::new(
            "waiting",
            [remove("/spec/schedulingGates/1"), set(HOSTNAME, "vk-a"), set(PINNED, "true")],
        ),
        Change::new("waiting/status", [set("/status/conditions/-", placed())]),
        Change::new("waiting/status", [set("/status/conditions/-", scheduled)]),
        Change::new("running/status", [replace("/status/conditions/1", placed())]),
        Change::new("running/status", [remove("/status/conditions/1")]),
        Change::new("waiting/status", [set("/status/nominatedNodeName", "vk-a")]),
        Change::new(
            "waiting/status",
            [
                set("/status/nominatedNodeName", "vk-a"),
                set("/status/conditions/-", placed()),
                remove(OWN_LABEL),
            ],
        ),
    ]
}

/// What placement may not change. The API server permits all of it to others.
pub(crate) fn refused() -> Vec<Change> {
    [metadata(), keys_of_others(), spec(), status()].into_iter().flatten().collect()
}

/// Keys with our prefix that are not those of placement. By the first ones a virtual node of another cluster knows its lower pods: it would delete
/// a pod that has them, or give it another image.
fn keys_of_others() -> Vec<Change> {
    let labels = [
        (
            "/metadata/labels/multicluster.virtual-kubelet.io~1origin",
            "multicluster.virtual-kubelet.io/origin",
        ),
        ("/metadata/labels/multicluster.virtual-kubelet.io~1node", "multicluster.virtual-kubelet.io/node"),
        (
            "/metadata/labels/multicluster.virtual-kubelet.io~1origin-uid",
            "multicluster.virtual-kubelet.io/origin-uid",
        ),
        ("/metadata/labels/multicluster.virtual-kubelet.io~1group", "multicluster.virtual-kubelet.io/group"),
    ];
    let annotations = [
        (
            "/metadata/annotations/multicluster.virtual-kubelet.io~1origin-name",
            "multicluster.virtual-kubelet.io/origin-name",
        ),
        (
            "/metadata/annotations/multicluster.virtual-kubelet.io~1lower",
            "multicluster.virtual-kubelet.io/lower",
        ),
        (
            "/metadata/annotations/multicluster.virtual-kubelet.io~1api-access",
            "multicluster.virtual-kubelet.io/api-access",
        ),
        (
            "/metadata/annotations/multicluster.virtual-kubelet.io~1deschedule",
            "multicluster.virtual-kubelet.io/deschedule",
        ),
    ];
    let refused = |paths: [(&str, &'static str); 4], message| {
        paths.map(|(path, key)| Change::new("waiting", [set(path, "a")]).refused(message, key))
    };
    refused(labels, LABELS).into_iter().chain(refused(annotations, ANNOTATIONS)).collect()
}

fn metadata() -> Vec<Change> {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "2"});
    vec![
        Change::new("waiting", [set("/metadata/labels/x", "a")]).refused(LABELS, "x"),
        Change::new("waiting", [replace("/metadata/labels/app", "a")]).refused(LABELS, "app"),
        Change::new("waiting", [remove("/metadata/labels/app")]).refused(LABELS, "app"),
        Change::new("waiting", [remove("/metadata/labels")]).refused(LABELS, "app"),
        Change::new("waiting/status", [set("/metadata/labels/x", "a")]).refused(LABELS, "x"),
        // A name that only looks like one of ours.
        Change::new("waiting", [set("/metadata/labels/multicluster.virtual-kubelet.io", "a")])
            .refused(LABELS, "multicluster.virtual-kubelet.io"),
        Change::new("waiting", [set("/metadata/annotations/x", "a")]).refused(ANNOTATIONS, "x"),
        Change::new("waiting", [replace("/metadata/annotations/team", "a")]).refused(ANNOTATIONS, "team"),
        Change::new("waiting", [remove("/metadata/annotations/team")]).refused(ANNOTATIONS, "team"),
        Change::new("running/status", [set("/metadata/annotations", json!({"x": "a"}))])
            .refused(ANNOTATIONS, "x"),
        Change::new("waiting", [set("/metadata/finalizers/-", "example.com/x")])
            .refused(METADATA, "finalizers"),
        Change::new("waiting", [remove("/metadata/finalizers")]).refused(METADATA, "finalizers"),
        Change::new("waiting/status", [remove("/metadata/finalizers/0")]).refused(METADATA, "finalizers"),
        Change::new("waiting", [set("/metadata/ownerReferences/-", owner)])
            .refused(METADATA, "ownerReferences"),
        Change::new("waiting", [remove("/metadata/ownerReferences")]).refused(METADATA, "ownerReferences"),
        Change::new("waiting", [set("/metadata/generateName", "a")]).refused(METADATA, "generateName"),
        // What is permitted does not help what is not.
        Change::new("waiting", [remove("/spec/schedulingGates/1"), set("/metadata/labels/x", "a")])
            .refused(LABELS, "x"),
    ]
}

fn spec() -> Vec<Change> {
    let toleration = json!({"key": "gpu", "operator": "Exists"});
    let requirement = json!({"key": "disk", "operator": "Exists"});
    let term = json!({"matchExpressions": [requirement]});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
    let preferred =
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]});
    let debugger = json!([{"name": "debugger", "image": "none"}]);
    vec![
        Change::new("waiting", [replace("/spec/containers/0/image", "x")]).refused(SPEC, "containers"),
        Change::new("running", [replace("/spec/containers/0/image", "x")]).refused(SPEC, "containers"),
        Change::new("waiting", [replace("/spec/initContainers/0/image", "x")])
            .refused(SPEC, "initContainers"),
        Change::new("running", [replace("/spec/initContainers/0/image", "x")])
            .refused(SPEC, "initContainers"),
        Change::new("running/ephemeralcontainers", [set("/spec/ephemeralContainers", debugger)])
            .refused(SPEC, "ephemeralContainers"),
        Change::new("waiting/resize", [replace("/spec/containers/0/resources/requests/cpu", "2")])
            .refused(SPEC, "containers"),
        Change::new("waiting", [replace("/spec/activeDeadlineSeconds", 1)])
            .refused(SPEC, "activeDeadlineSeconds"),
        Change::new("running", [set("/spec/activeDeadlineSeconds", 1)])
            .refused(SPEC, "activeDeadlineSeconds"),
        Change::new("waiting", [set("/spec/tolerations/-", toleration)]).refused(SPEC, "tolerations"),
        Change::new("waiting", [set("/spec/affinity", json!({"nodeAffinity": required}))])
            .refused(SPEC, "affinity"),
        Change::new("waiting", [set("/spec/affinity", json!({"nodeAffinity": preferred}))])
            .refused(SPEC, "affinity"),
        Change::new("waiting", [remove("/spec/schedulingGates/0")]).refused(GATES, ""),
        Change::new("waiting", [remove("/spec/schedulingGates")]).refused(GATES, ""),
        Change::new("waiting", [set("/spec/nodeSelector/disk", "ssd")]).refused(SELECTOR, "disk"),
        Change::new("waiting", [set(HOSTNAME, "vk-a"), set("/spec/nodeSelector/disk", "ssd")])
            .refused(SELECTOR, "disk"),
    ]
}

fn status() -> Vec<Change> {
    let mut debugger = json!({"name": "debugger", "image": "none", "imageID": "", "ready": false});
    debugger["restartCount"] = json!(0);
    let claim = json!([{"name": "gpu", "resourceClaimName": "gpu-1"}]);
    let change = |operation: Value, field| Change::new("running/status", [operation]).refused(STATUS, field);
    vec![
        change(replace("/status/phase", "Failed"), "phase"),
        change(replace("/status/reason", "x"), "reason"),
        change(remove("/status/reason"), "reason"),
        change(replace("/status/message", "x"), "message"),
        change(replace("/status/startTime", "2026-11-18T21:00:00Z"), "startTime"),
        Change::new(
            "running/status",
            [
                replace("/status/hostIP", "192.0.2.2"),
                replace("/status/hostIPs", json!([{"ip": "192.0.2.2"}])),
            ],
        )
        .refused(STATUS, "hostIPs"),
        Change::new(
            "running/status",
            [replace("/status/podIP", "192.0.2.2"), replace("/status/podIPs", json!([{"ip": "192.0.2.2"}]))],
        )
        .refused(STATUS, "podIPs"),
        change(set("/status/podIPs/-", json!({"ip": "2001:db8::1"})), "podIPs"),
        change(replace("/status/containerStatuses/0/ready", false), "containerStatuses"),
        change(remove("/status/containerStatuses"), "containerStatuses"),
        change(replace("/status/initContainerStatuses/0/restartCount", 1), "initContainerStatuses"),
        change(set("/status/ephemeralContainerStatuses", json!([debugger])), "ephemeralContainerStatuses"),
        change(set("/status/resourceClaimStatuses", claim), "resourceClaimStatuses"),
        change(set("/status/resize", "Proposed"), "resize"),
        change(set("/status/observedGeneration", 7), "observedGeneration"),
        change(replace("/status/conditions/0/status", "False"), "").refused(CONDITIONS, ""),
        change(remove("/status/conditions/0"), "").refused(CONDITIONS, ""),
        change(set("/status/conditions/-", condition("PodScheduled")), "").refused(CONDITIONS, ""),
        change(set("/status/conditions/-", condition("DisruptionTarget")), "").refused(CONDITIONS, ""),
        change(set("/status/conditions/-", condition("multicluster.virtual-kubelet.io/Other")), "")
            .refused(CONDITIONS, ""),
        Change::new("waiting/status", [remove("/status/conditions")]).refused(CONDITIONS, ""),
    ]
}
