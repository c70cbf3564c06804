//! The state machine under seeded schedules: answers that are late, reordered or lost, delayed watches, changes by others on both sides,
//! and restarts. The fake API server asserts that foreign objects are never touched, and after each step no pod that could be created
//! refers to an object of others. At the end all copies are up to date, and without pods none is left.

use rand::RngExt as _;
use serde_json::{Value, json};
use vk_kube::{Error, Kind as ErrorKind};

use super::{
    GRACE,
    fake_clusters::{FakeClusters, key, needs, optional, owner, pod},
    *,
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PODS: [&str; 3] = ["p", "q", OPTIONAL];
/// The pod that can run without its objects.
const OPTIONAL: &str = "r";
const SEEDS: u64 = 400;

fn object(kind: Kind, rng: &mut StdRng) -> Value {
    let value = rng.random_range(0..3);
    match kind {
        Kind::ConfigMap => json!({"data": {"key": value.to_string()}, "immutable": rng.random_bool(0.3)}),
        Kind::Secret => json!({
            "data": {"key": (["eA==", "eQ==", "eg=="][value])},
            "type": (["Opaque", "example.com/x"][rng.random_range(0..2)]),
            "metadata": {"labels": {(["x", "y"][rng.random_range(0..2)]): "z"}},
        }),
        _ => json!({"spec": {"resources": {"requests": {"storage": format!("{}Gi", value + 1)}}}}),
    }
}

/// The dependencies of a pod.
fn dependencies(pod: &str, all: &[(Kind, &str)]) -> Dependencies {
    if pod == OPTIONAL { optional(all) } else { needs(all) }
}

fn kind(rng: &mut StdRng) -> Kind {
    Kind::ALL[rng.random_range(0..Kind::ALL.len())]
}

struct Simulation {
    clusters: FakeClusters,
    rng: StdRng,
    pods: BTreeMap<&'static str, Vec<(Kind, &'static str)>>,
    /// Objects that others created in the lower cluster.
    foreign: BTreeMap<CopyKey, Value>,
    seed: u64,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            clusters: FakeClusters::of(NamespaceMapping::Same, seed),
            rng: rand::SeedableRng::seed_from_u64(seed),
            pods: BTreeMap::new(),
            foreign: BTreeMap::new(),
            seed,
        }
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.rng.random_range(0..NAMES.len())]
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..15 => {
                self.clusters.deliver_upper();
            }
            15..30 => {
                self.clusters.deliver_lower();
            }
            30..38 => {
                self.clusters.answer_namespace();
            }
            38..62 => self.answer(),
            62..70 => {
                let (kind, name) = (kind(&mut self.rng), self.name());
                if kind != Kind::ServiceAccount {
                    let object = object(kind, &mut self.rng);
                    // An immutable object is deleted and created again.
                    let key = (kind, "default".to_owned(), name.to_owned());
                    if self.clusters.upper.get(&key).is_some_and(|known| known["immutable"] == true) {
                        self.clusters.delete(kind, "default", name);
                    }
                    self.clusters.put(kind, "default", name, object);
                }
            }
            70..74 => {
                let (kind, name) = (kind(&mut self.rng), self.name());
                self.clusters.delete(kind, "default", name);
            }
            74..82 => {
                let name = PODS[self.rng.random_range(0..PODS.len())];
                let count = self.rng.random_range(0..4);
                let all: Vec<_> = (0..count).map(|_| (kind(&mut self.rng), self.name())).collect();
                self.clusters.handle(Event::PodAdded(pod(name), dependencies(name, &all)));
                self.pods.insert(name, all);
            }
            82..86 => {
                let name = PODS[self.rng.random_range(0..PODS.len())];
                self.clusters.remove_pod(name);
                self.pods.remove(name);
            }
            86..88 => self.change_foreign_objects(),
            88..89 => self.clusters.break_watch(),
            89..90 => {
                let seed = self.rng.random();
                self.clusters.restart(seed);
                let pods = self.pods.clone();
                for (name, all) in pods {
                    self.clusters.handle(Event::PodAdded(pod(name), dependencies(name, &all)));
                }
            }
            _ => {
                self.clusters.now += Duration::from_millis(self.rng.random_range(0..30_000));
                self.clusters.handle(Event::Tick);
            }
        }
    }

    /// Finishes a call, with or without success, and perhaps loses the answer.
    fn answer(&mut self) {
        if self.clusters.calls.is_empty() {
            return;
        }
        let (key, call) = self.clusters.calls.remove(self.rng.random_range(0..self.clusters.calls.len()));
        let away = || Err(Error::new(ErrorKind::Timeout, "no answer"));
        let answer = match self.rng.random_range(0..10) {
            0 => away(),
            1 => {
                drop(self.clusters.serve(&key, &call));
                away()
            }
            _ => self.clusters.serve(&key, &call),
        };
        self.clusters.handle(Event::CallFinished(key, answer));
    }

    /// Acts as others in the lower cluster: creates objects, and deletes theirs and ours.
    fn change_foreign_objects(&mut self) {
        let key = key(kind(&mut self.rng), self.name());
        if self.clusters.lower.contains_key(&key) {
            self.foreign.remove(&key);
            self.clusters.delete_lower(&key);
        } else if self.rng.random_bool(0.4) {
            self.clusters.put_lower(&key, json!({"metadata": {"labels": {"owner": "somebody"}}}));
            self.foreign.insert(key.clone(), self.clusters.lower[&key].clone());
        }
    }

    fn check_foreign(&self) {
        for (key, object) in &self.foreign {
            assert_eq!(self.clusters.lower.get(key), Some(object), "seed {}: {key} is foreign", self.seed);
        }
    }

    /// No pod that could be created now refers to an object of others that was there when the pod was last asked for. Others can replace a
    /// copy at any time; what they do in this step is known with the next.
    fn check_names(&self) {
        for (name, all) in &self.pods {
            if self.clusters.state_machine.readiness(&pod(name)) != Readiness::Ready {
                continue;
            }
            for (kind, object) in
                needs(all).pairs().into_iter().filter(|(kind, _)| *kind != Kind::ServiceAccount)
            {
                let known = self.clusters.state_machine.entries[&key(kind, &object)].own_copy();
                assert!(
                    known.is_some(),
                    "seed {}: {name} uses {kind} {object}, which is not ours",
                    self.seed
                );
            }
        }
    }

    fn check_copies(&self) {
        let seed = self.seed;
        for (name, all) in &self.pods {
            let exists = |kind: Kind, name: &str| {
                let upper = (kind, "default".to_owned(), name.to_owned());
                kind == Kind::ServiceAccount || self.clusters.upper.contains_key(&upper)
            };
            let pairs = needs(all).pairs();
            let conflict = |(kind, name): &(Kind, String)| {
                *kind != Kind::ServiceAccount && self.foreign.contains_key(&key(*kind, name))
            };
            let missing = |(kind, object): &(Kind, String)| {
                let can_do_without = *name == OPTIONAL && matches!(kind, Kind::ConfigMap | Kind::Secret);
                !exists(*kind, object) && !can_do_without
            };
            let expected = if pairs.iter().any(conflict) {
                Readiness::Conflict
            } else if pairs.iter().any(missing) {
                Readiness::Missing
            } else {
                Readiness::Ready
            };
            let readiness = self.clusters.state_machine.readiness(&pod(name));
            let pending = self.clusters.state_machine.pending_copy(&pod(name));
            assert_eq!(readiness, expected, "seed {seed}: {name} {pending:?}");
            for (kind, object) in pairs {
                let key = key(kind, &object);
                if self.foreign.contains_key(&key) {
                    continue;
                }
                let upper = self.clusters.upper.get(&(kind, "default".to_owned(), object.clone()));
                let found = self.clusters.observed(&key);
                match (upper, found) {
                    (None, found) if kind == Kind::Claim => {
                        assert_eq!(found, None, "seed {seed}: {key} has no upper object");
                    }
                    // A copy that was needed holds the name, and so does an empty one that is optional.
                    (None, found) if kind != Kind::ServiceAccount => {
                        assert!(found.is_some() || *name != OPTIONAL, "seed {seed}: {key} is not held");
                    }
                    (None, found) => assert!(found.is_some(), "seed {seed}: {key}"),
                    (Some(upper), Some(found)) => {
                        let desired = self.clusters.desired(&key, upper).unwrap();
                        let difference = found.compare(&desired);
                        assert_eq!(difference, crate::copies::diff::Difference::None, "seed {seed}: {key}");
                        let stale = ["x", "y"]
                            .iter()
                            .any(|key| found.labels.contains_key(*key) && !desired.labels.contains_key(*key));
                        assert!(!stale, "seed {seed}: {key} has a stale label");
                    }
                    (Some(_), None) => panic!("seed {seed}: {key} is missing below"),
                }
            }
        }
    }
}

impl Dependencies {
    fn pairs(&self) -> Vec<(Kind, String)> {
        referenced_objects(self).map(|(kind, name)| (kind, name.to_owned())).collect()
    }
}

#[test]
fn copies_converge_and_foreign_objects_are_never_touched() {
    for seed in 0..SEEDS {
        let mut simulation = Simulation::new(seed);
        for _ in 0..400 {
            simulation.step();
            simulation.check_foreign();
            simulation.check_names();
        }
        // The pods ask again, as those that wait do.
        for (name, all) in simulation.pods.clone() {
            simulation.clusters.advance(Duration::from_mins(5));
            simulation.clusters.handle(Event::PodAdded(pod(name), dependencies(name, &all)));
        }
        simulation.clusters.advance(Duration::from_mins(15));
        simulation.check_foreign();
        simulation.check_copies();
        for name in PODS {
            simulation.clusters.remove_pod(name);
        }
        for key in simulation.clusters.upper.keys().cloned().collect::<Vec<_>>() {
            simulation.clusters.delete(key.0, &key.1, &key.2);
        }
        simulation.clusters.advance(GRACE * 15);
        simulation.check_foreign();
        let owner_map = key(Kind::ConfigMap, &owner_config_map::name(&owner()));
        let ours = simulation
            .clusters
            .lower
            .keys()
            .filter(|it| **it != owner_map && !simulation.foreign.contains_key(it));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&CopyKey>::new(), "seed {seed}: everything is cleaned up");
        assert!(
            simulation.clusters.watched.is_empty() && simulation.clusters.state_machine.entries.is_empty(),
            "seed {seed}"
        );
    }
}
