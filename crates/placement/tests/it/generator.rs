//! Generates pods of every shape that matters to conversion. All are valid for the API server.

use serde_json::{Map, Value, json};

/// Labels of virtual nodes.
pub(crate) const UPPER_KEYS: [&str; 5] = [
    "type",
    "clusterID",
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "multicluster.virtual-kubelet.io/cluster",
];
/// Labels of lower nodes. One is a word of the syntax of selectors.
pub(crate) const LOWER_KEYS: [&str; 5] = ["disk", "example.com/gpu", "kubernetes.io/arch", "in", "rack"];
/// Values of labels.
pub(crate) const VALUES: [&str; 4] = ["a", "b-1", "C.2", ""];
/// Values of labels that are compared as numbers.
pub(crate) const NUMBERS: [&str; 3] = ["4", "5", "6"];

const HOSTNAME: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const PREFIX: &str = "multicluster.virtual-kubelet.io";

/// A generator of numbers (SplitMix64): the same for the same seed on every machine.
pub(crate) struct Numbers(u64);

// === impl Numbers ===

impl Numbers {
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    fn times<T>(&mut self, most: u64, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }
}

/// A pod that has no name yet.
pub(crate) fn pod(seed: u64) -> Value {
    let mut numbers = Numbers::of(seed);
    let numbers = &mut numbers;
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "none"}],
    });
    if numbers.percent(60) {
        let keys = numbers.times(4, |numbers| (key(numbers), numbers.one(&VALUES)));
        spec["nodeSelector"] = keys.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    }
    let affinity = affinity(numbers);
    if !affinity.is_empty() {
        spec["affinity"] = Value::Object(affinity);
    }
    if numbers.percent(50) {
        spec["topologySpreadConstraints"] = json!(spreads(numbers));
    }
    if numbers.percent(50) {
        spec["tolerations"] = json!(numbers.times(2, toleration));
    }
    if numbers.percent(20) {
        let gates = ["example.com/quota", "multicluster.virtual-kubelet.io/placement"];
        spec["schedulingGates"] = json!([{"name": numbers.one(&gates)}]);
    } else if numbers.percent(5) {
        spec["nodeName"] = json!("vk-a");
    }
    json!({"metadata": metadata(numbers), "spec": spec})
}

fn metadata(numbers: &mut Numbers) -> Value {
    let mut metadata = json!({});
    let mut labels = Map::new();
    if numbers.percent(80) {
        labels
            .insert("virtual-pod".to_owned(), json!(numbers.one(&["true", "true", "true", "true", "false"])));
    }
    if numbers.percent(50) {
        labels.insert("app".to_owned(), json!("web"));
    }
    if numbers.percent(5) {
        labels.insert(format!("{PREFIX}/origin"), json!("another"));
    }
    if !labels.is_empty() {
        metadata["labels"] = Value::Object(labels);
    }
    let annotations = [
        ("team", "shop", 30),
        ("multicluster.virtual-kubelet.io/lower-nodes", "disk=a,example.com/gpu in (a,rack)", 15),
        ("multicluster.virtual-kubelet.io/lower-nodes", "not (a selector", 5),
        ("multicluster.virtual-kubelet.io/lower-spread", "rack, row:2", 5),
        ("multicluster.virtual-kubelet.io/lower", "{}", 5),
        ("clusterSelector", "{}", 5),
    ];
    for (key, value, chance) in annotations {
        if numbers.percent(chance) {
            metadata["annotations"][key] = json!(value);
        }
    }
    if numbers.percent(40) {
        let kind = numbers.one(&["ReplicaSet", "ReplicaSet", "Job", "DaemonSet"]);
        metadata["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": "6d1d6e0e-0001"}]);
    }
    metadata
}

fn key(numbers: &mut Numbers) -> &'static str {
    if numbers.percent(40) { numbers.one(&UPPER_KEYS) } else { numbers.one(&LOWER_KEYS) }
}

fn expression(numbers: &mut Numbers) -> Value {
    let key = key(numbers);
    match numbers.one(&["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]) {
        operator @ ("Exists" | "DoesNotExist") => json!({"key": key, "operator": operator}),
        operator @ ("Gt" | "Lt") => {
            json!({"key": key, "operator": operator, "values": [numbers.one(&NUMBERS)]})
        }
        operator => {
            let mut values = vec![numbers.one(&VALUES)];
            values.extend(numbers.times(2, |numbers| numbers.one(&VALUES)));
            json!({"key": key, "operator": operator, "values": values})
        }
    }
}

fn term(numbers: &mut Numbers) -> Value {
    let mut term = json!({});
    let expressions = numbers.times(3, expression);
    if !expressions.is_empty() {
        term["matchExpressions"] = json!(expressions);
    }
    if numbers.percent(10) {
        term["matchFields"] = json!([{"key": "metadata.name", "operator": "In", "values": ["vk-a"]}]);
    }
    term
}

fn affinity(numbers: &mut Numbers) -> Map<String, Value> {
    let mut affinity = json!({});
    if numbers.percent(60) {
        let mut terms = vec![term(numbers)];
        if numbers.percent(40) {
            terms.push(term(numbers));
            terms.extend(numbers.times(1, term));
        }
        affinity["nodeAffinity"][REQUIRED] = json!({"nodeSelectorTerms": terms});
    }
    if numbers.percent(20) {
        let preference = json!({"matchExpressions": [expression(numbers)]});
        affinity["nodeAffinity"][PREFERRED] = json!([{"weight": 7, "preference": preference}]);
    }
    for (kind, chance) in [("podAntiAffinity", 50), ("podAffinity", 20)] {
        if numbers.percent(chance) {
            let mut terms = vec![pod_term(numbers)];
            terms.extend(numbers.times(2, pod_term));
            affinity[kind][REQUIRED] = json!(terms);
        }
        if numbers.percent(20) {
            affinity[kind][PREFERRED] = json!([{"weight": 3, "podAffinityTerm": pod_term(numbers)}]);
        }
    }
    let Value::Object(affinity) = affinity else { unreachable!("it is made as an object") };
    affinity
}

fn pod_term(numbers: &mut Numbers) -> Value {
    let key = numbers.one(&[HOSTNAME, HOSTNAME, "topology.kubernetes.io/zone", "rack"]);
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}})
}

/// At most one constraint for each key and kind, as the API server demands.
fn spreads(numbers: &mut Numbers) -> Vec<Value> {
    let mut spreads = Vec::new();
    for key in [HOSTNAME, "topology.kubernetes.io/zone", "rack", "example.com/row", "clusterID"] {
        for when in ["DoNotSchedule", "ScheduleAnyway"] {
            if !numbers.percent(if when == "DoNotSchedule" { 40 } else { 15 }) {
                continue;
            }
            let mut spread = json!({
                "topologyKey": key, "whenUnsatisfiable": when, "maxSkew": 1 + numbers.below(2),
                "labelSelector": {"matchLabels": {"app": "web"}},
            });
            if when == "DoNotSchedule" && numbers.percent(30) {
                spread["minDomains"] = json!(1 + numbers.below(3));
            }
            spreads.push(spread);
        }
    }
    spreads
}

fn toleration(numbers: &mut Numbers) -> Value {
    let lost = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute"});
    match numbers.below(8) {
        0 => json!({"operator": "Exists"}),
        1 => json!({"operator": "Exists", "effect": "NoExecute"}),
        2 => json!({"key": "virtual-kubelet.io/provider", "operator": "Equal", "value": "cluster"}),
        3 => json!({"key": "virtual-kubelet.io/provider", "operator": "Exists", "effect": "NoExecute"}),
        4 => lost("node.kubernetes.io/not-ready"),
        5 => {
            let mut toleration = lost("node.kubernetes.io/unreachable");
            toleration["tolerationSeconds"] = json!(numbers.one(&[30, 300]));
            toleration
        }
        _ => json!({"key": "gpu", "operator": "Exists"}),
    }
}
