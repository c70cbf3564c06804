//! Generates nodes, the pods on them, and a pod that may fit.

use serde_json::{Value, json};

/// The label by which the nodes and pods of one pair are kept apart from those of others.
pub(crate) const PAIR: &str = "fit.example.com/pair";
/// The RuntimeClass of pods with overhead.
pub(crate) const RUNTIME_CLASS: &str = "fit-overhead";

/// Nodes with pods, and a pod: the objects as they are written to the API server.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) nodes: Vec<Value>,
    /// Pods that are bound to the nodes, with a status to set.
    pub(crate) bound: Vec<(Value, Option<Value>)>,
    /// The claim of the pod and its volume.
    pub(crate) claim: Option<(Value, Value)>,
    pub(crate) pod: Value,
}

/// How often something is generated, in percent. A pair tries one filter of the scheduler, or all at once: where every filter may refuse a pod,
/// the answer of a single one is seldom seen.
#[derive(Clone, Copy, Default)]
struct Odds {
    /// Nodes are small enough to be full.
    tight: bool,
    init: u64,
    overhead: u64,
    pod_level: u64,
    resized: u64,
    ended: u64,
    extended: u64,
    ports: u64,
    taints: u64,
    cordon: u64,
    selector: u64,
    affinity: u64,
    claim: u64,
}

/// A generator of numbers (SplitMix64): the same for the same seed on every machine.
struct Numbers(u64);

// === impl Odds ===

impl Odds {
    fn of(seed: u64) -> Self {
        let none = Self::default();
        // Full nodes most often: a pod must be as large as what is left to show a wrong sum.
        match seed % 10 {
            0 | 8 => Self { tight: true, init: 80, overhead: 20, pod_level: 20, ..none },
            1 | 9 => Self { tight: true, resized: 90, ended: 5, ..none },
            2 => Self { extended: 70, ..none },
            3 => Self { ports: 90, init: 30, ..none },
            4 => Self { taints: 80, cordon: 30, ..none },
            5 => Self { selector: 30, affinity: 90, ..none },
            6 => Self { claim: 100, ..none },
            _ => Self {
                tight: true,
                init: 30,
                overhead: 10,
                pod_level: 10,
                resized: 10,
                ended: 10,
                extended: 10,
                ports: 20,
                taints: 20,
                cordon: 10,
                selector: 15,
                affinity: 30,
                claim: 15,
            },
        }
    }
}

// === impl Numbers ===

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

// === impl Pair ===

impl Pair {
    pub(crate) fn generate(seed: u64, namespace: &str) -> Self {
        let mut numbers = Numbers(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let numbers = &mut numbers;
        let odds = Odds::of(seed);
        let names: Vec<String> = (0..=numbers.below(2)).map(|index| format!("fit-{seed}-{index}")).collect();
        let nodes = names.iter().map(|name| node(numbers, odds, seed, name)).collect();
        let count = numbers.below(3);
        let bound =
            (0..count).map(|index| bound_pod(numbers, odds, seed, index, namespace, &names)).collect();
        let claim = numbers.percent(odds.claim).then(|| claim(numbers, seed, namespace, &names));
        let mut pod = pod(numbers, odds, &format!("asked-{seed}"), namespace);
        let spec = &mut pod["spec"];
        spec["nodeSelector"] = json!({PAIR: seed.to_string()});
        if numbers.percent(odds.selector) {
            spec["nodeSelector"]["zone"] = json!(numbers.one(&["a", "b"]));
        }
        if numbers.percent(odds.affinity) {
            spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({"nodeSelectorTerms": terms(numbers, &names)});
        }
        if numbers.percent(odds.taints / 2) {
            spec["tolerations"] = tolerations(numbers);
        }
        if claim.is_some() {
            spec["volumes"] =
                json!([{"name": "data", "persistentVolumeClaim": {"claimName": format!("claim-{seed}")}}]);
        }
        Self { nodes, bound, claim, pod }
    }
}

fn node(numbers: &mut Numbers, odds: Odds, seed: u64, name: &str) -> Value {
    let mut allocatable = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    if odds.tight {
        allocatable["cpu"] = json!(format!("{}m", 750 + 250 * numbers.below(7)));
        allocatable["memory"] = json!(format!("{}Mi", 1024 + 256 * numbers.below(9)));
    }
    if numbers.percent(odds.extended) {
        allocatable["example.com/gpu"] = json!(numbers.below(3).to_string());
    }
    if numbers.percent(odds.extended / 2) {
        allocatable["ephemeral-storage"] = json!("1Gi");
    }
    if numbers.percent(odds.extended / 2) {
        allocatable["pods"] = json!((1 + numbers.below(4)).to_string());
    }
    let mut labels = json!({
        PAIR: seed.to_string(), "kubernetes.io/hostname": name, "zone": numbers.one(&["a", "b"]),
    });
    if numbers.percent(80) {
        labels["cores"] = json!(numbers.one(&["2", "4", "8", "many"]));
    }
    if numbers.percent(25) {
        labels["topology.kubernetes.io/zone"] = json!(numbers.one(&["z1", "z2"]));
    }
    let mut taints = Vec::new();
    if numbers.percent(odds.taints) {
        let effect = numbers.one(&["NoSchedule", "NoExecute", "PreferNoSchedule"]);
        taints.push(json!({"key": "gpu", "value": numbers.one(&["a", "b"]), "effect": effect}));
    }
    if numbers.percent(odds.taints / 4) {
        taints.push(json!({"key": "maintenance", "effect": "NoSchedule"}));
    }
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": numbers.percent(odds.cordon), "taints": taints},
        "status": {
            "capacity": allocatable, "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    })
}

/// A pod with containers, init containers, sidecars, pod-level resources and ports, in all combinations.
fn pod(numbers: &mut Numbers, odds: Odds, name: &str, namespace: &str) -> Value {
    let mut containers = vec![container(numbers, odds, "main")];
    if numbers.percent(30) {
        containers.push(container(numbers, odds, "beside"));
    }
    if numbers.percent(odds.ports) {
        containers[0]["ports"] = json!([{
            "containerPort": 80,
            "hostPort": 8000 + numbers.below(2),
            "hostIP": numbers.one(&["", "", "127.0.0.1", "10.0.0.1"]),
            "protocol": numbers.one(&["TCP", "TCP", "UDP"]),
        }]);
    }
    let mut init = Vec::new();
    let count = if numbers.percent(odds.init) { 1 + numbers.below(2) } else { 0 };
    for index in 0..count {
        let mut container = container(numbers, odds, &format!("init-{index}"));
        if numbers.percent(50) {
            container["restartPolicy"] = json!("Always");
        }
        if numbers.percent(odds.ports / 2) {
            container["ports"] = json!([{"containerPort": 81, "hostPort": 8000 + numbers.below(2)}]);
        }
        init.push(container);
    }
    let mut spec = json!({
        "containers": containers, "initContainers": init,
        "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
    });
    if numbers.percent(odds.overhead) {
        spec["runtimeClassName"] = json!(RUNTIME_CLASS);
    }
    if numbers.percent(odds.pod_level) {
        // The API server demands that the whole is at least the sum.
        spec["resources"] = json!({"requests": {"cpu": "3", "memory": "3500Mi"}});
    }
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn container(numbers: &mut Numbers, odds: Odds, name: &str) -> Value {
    let mut requests = json!({});
    if numbers.percent(80) {
        requests["cpu"] = json!(format!("{}m", 250 * numbers.below(4)));
    }
    if numbers.percent(60) {
        requests["memory"] = json!(format!("{}Mi", 256 * numbers.below(4)));
    }
    if numbers.percent(odds.extended / 2) {
        requests["ephemeral-storage"] = json!("300Mi");
    }
    let mut resources = json!({"requests": requests});
    if numbers.percent(odds.extended / 2) {
        resources["requests"]["example.com/gpu"] = json!("1");
        resources["limits"] = json!({"example.com/gpu": "1"});
    }
    json!({"name": name, "image": "none", "resources": resources})
}

/// A pod on one of the nodes. Some have ended, and some are being resized.
fn bound_pod(
    numbers: &mut Numbers,
    odds: Odds,
    seed: u64,
    index: u64,
    namespace: &str,
    nodes: &[String],
) -> (Value, Option<Value>) {
    let mut pod = pod(numbers, odds, &format!("bound-{seed}-{index}"), namespace);
    pod["spec"]["nodeName"] = json!(numbers.one(nodes));
    let mut status = None;
    if numbers.percent(odds.ended) {
        status = Some(json!({"phase": "Succeeded"}));
    } else if numbers.percent(odds.resized) {
        let cpu = |numbers: &mut Numbers| json!({"cpu": format!("{}m", 250 * numbers.below(4))});
        let allocated = cpu(numbers);
        let mut resized = json!({"phase": "Running", "containerStatuses": [{
            "name": "main", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": allocated, "resources": {"requests": cpu(numbers)},
        }]});
        if numbers.percent(40) {
            let reason = numbers.one(&["Infeasible", "Deferred"]);
            resized["conditions"] = json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
        }
        status = Some(resized);
    }
    (pod, status)
}

/// A claim that is bound to a volume, which some of the nodes can use.
fn claim(numbers: &mut Numbers, seed: u64, namespace: &str, nodes: &[String]) -> (Value, Value) {
    let (claim, volume) = (format!("claim-{seed}"), format!("volume-{seed}"));
    let mut volume_object = json!({
        "metadata": {"name": volume},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": claim},
            "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [match numbers.below(3) {
                0 => json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [numbers.one(nodes)]}),
                1 => json!({"key": "zone", "operator": "In", "values": [numbers.one(&["a", "b"])]}),
                _ => json!({"key": "zone", "operator": "Exists"}),
            }]}]}},
        },
    });
    if numbers.percent(40) {
        volume_object["metadata"]["labels"] =
            json!({"topology.kubernetes.io/zone": numbers.one(&["z1", "z1__z2", "z3"])});
    }
    let claim_object = json!({
        "metadata": {
            "name": claim, "namespace": namespace,
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    (claim_object, volume_object)
}

fn terms(numbers: &mut Numbers, nodes: &[String]) -> Value {
    let count = if numbers.percent(30) { 2 } else { 1 };
    let terms: Vec<Value> = (0..count)
        .map(|_| {
            let mut term = json!({});
            if numbers.percent(30) {
                let operator = numbers.one(&["In", "NotIn"]);
                term["matchFields"] = json!([
                    {"key": "metadata.name", "operator": operator, "values": [numbers.one(nodes)]}]);
            }
            if term.get("matchFields").is_none() || numbers.percent(50) {
                let count = if numbers.percent(30) { 2 } else { 1 };
                let all: Vec<Value> = (0..count).map(|_| expression(numbers, nodes)).collect();
                term["matchExpressions"] = Value::Array(all);
            }
            term
        })
        .collect();
    Value::Array(terms)
}

fn expression(numbers: &mut Numbers, nodes: &[String]) -> Value {
    match numbers.below(7) {
        0 => json!({"key": "zone", "operator": "In", "values": [numbers.one(&["a", "b"]), "c"]}),
        1 => json!({"key": "zone", "operator": "NotIn", "values": [numbers.one(&["a", "b"])]}),
        2 => json!({"key": "cores", "operator": "Exists"}),
        3 => json!({"key": "cores", "operator": "DoesNotExist"}),
        4 => json!({"key": "cores", "operator": "Gt", "values": [numbers.one(&["2", "4", "8"])]}),
        5 => json!({"key": "cores", "operator": "Lt", "values": [numbers.one(&["2", "4", "8"])]}),
        _ => json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [numbers.one(nodes)]}),
    }
}

fn tolerations(numbers: &mut Numbers) -> Value {
    let mut all = Vec::new();
    if numbers.percent(70) {
        all.push(match numbers.below(3) {
            0 => json!({"key": "gpu", "operator": "Exists"}),
            1 => json!({"key": "gpu", "value": numbers.one(&["a", "b"]), "effect": "NoSchedule"}),
            _ => json!({"key": "gpu", "operator": "Equal", "value": "a"}),
        });
    }
    if numbers.percent(30) {
        all.push(
            json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}),
        );
    }
    if numbers.percent(15) {
        all.push(json!({"operator": "Exists"}));
    }
    Value::Array(all)
}
