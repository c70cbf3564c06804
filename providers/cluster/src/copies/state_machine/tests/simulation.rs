//! The state_machine under seeded schedules: answers that come late, in any order, or not at all; watches that trail; other people's hands
//! on both sides; restarts. A foreign object is never touched, which the server below asserts. When the storm is over, what pods name
//! is below as it is above; and when no pod is left, nothing of ours is.

use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    GRACE,
    fake_clusters::{FakeClusters, key, needs, owner, pod},
    *,
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PODS: [&str; 3] = ["p", "q", "r"];
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

fn kind(rng: &mut StdRng) -> Kind {
    Kind::ALL[rng.random_range(0..Kind::ALL.len())]
}

struct Storm {
    clusters: FakeClusters,
    rng: StdRng,
    wanted: BTreeMap<&'static str, Vec<(Kind, &'static str)>>,
    /// What others made below.
    foreign: BTreeMap<CopyKey, Value>,
    seed: u64,
}

impl Storm {
    fn new(seed: u64) -> Self {
        Self {
            clusters: FakeClusters::of(NamespaceMapping::Same, seed),
            rng: rand::SeedableRng::seed_from_u64(seed),
            wanted: BTreeMap::new(),
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
                self.clusters.hear_above();
            }
            15..30 => {
                self.clusters.hear_below();
            }
            30..38 => {
                self.clusters.answer_settle();
            }
            38..62 => self.answer(),
            62..70 => {
                let (kind, name) = (kind(&mut self.rng), self.name());
                if kind != Kind::ServiceAccount {
                    let object = object(kind, &mut self.rng);
                    // An object that never changes is deleted and made anew.
                    let key = (kind, "default".to_owned(), name.to_owned());
                    if self.clusters.above.get(&key).is_some_and(|known| known["immutable"] == true) {
                        self.clusters.take(kind, "default", name);
                    }
                    self.clusters.put(kind, "default", name, object);
                }
            }
            70..74 => {
                let (kind, name) = (kind(&mut self.rng), self.name());
                self.clusters.take(kind, "default", name);
            }
            74..82 => {
                let name = PODS[self.rng.random_range(0..PODS.len())];
                let count = self.rng.random_range(0..4);
                let all: Vec<_> = (0..count).map(|_| (kind(&mut self.rng), self.name())).collect();
                self.clusters.tell(Event::PodAdded(pod(name), needs(&all)));
                self.wanted.insert(name, all);
            }
            82..86 => {
                let name = PODS[self.rng.random_range(0..PODS.len())];
                self.clusters.release(name);
                self.wanted.remove(name);
            }
            86..88 => self.meddle(),
            88..89 => self.clusters.break_watch(),
            89..90 => {
                let seed = self.rng.random();
                self.clusters.restart(seed);
                let wanted = self.wanted.clone();
                for (name, all) in wanted {
                    self.clusters.tell(Event::PodAdded(pod(name), needs(&all)));
                }
            }
            _ => {
                self.clusters.now += Duration::from_millis(self.rng.random_range(0..30_000));
                self.clusters.tell(Event::Tick);
            }
        }
    }

    /// Some call ends, well or not, and perhaps without its answer being heard.
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
        self.clusters.tell(Event::CallFinished(key, answer));
    }

    /// Other people's hands below: they make objects, and delete theirs and ours.
    fn meddle(&mut self) {
        let key = key(kind(&mut self.rng), self.name());
        if self.clusters.below.contains_key(&key) {
            self.foreign.remove(&key);
            self.clusters.take_below(&key);
        } else if self.rng.random_bool(0.4) {
            self.clusters.put_below(&key, json!({"metadata": {"labels": {"owner": "somebody"}}}));
            self.foreign.insert(key.clone(), self.clusters.below[&key].clone());
        }
    }

    fn check_foreign(&self) {
        for (key, object) in &self.foreign {
            assert_eq!(self.clusters.below.get(key), Some(object), "seed {}: {key} is foreign", self.seed);
        }
    }

    fn check_wanted(&self) {
        let seed = self.seed;
        for (name, all) in &self.wanted {
            let readiness = self.clusters.state_machine.readiness(&pod(name));
            assert_eq!(
                readiness,
                Readiness::Ready,
                "seed {seed}: {name} {:?}",
                self.clusters.state_machine.pending_copy(&pod(name))
            );
            for (kind, name) in needs(all).pairs() {
                let key = key(kind, &name);
                if self.foreign.contains_key(&key) {
                    continue;
                }
                let upper = self.clusters.above.get(&(kind, "default".to_owned(), name.clone()));
                let found = self.clusters.found(&key);
                match (upper, found) {
                    (None, found) if kind != Kind::ServiceAccount => {
                        assert_eq!(found, None, "seed {seed}: {key} is gone above");
                    }
                    (None, found) => assert!(found.is_some(), "seed {seed}: {key}"),
                    (Some(upper), Some(found)) => {
                        let desired = self.clusters.desired(&key, upper).unwrap();
                        let difference = found.against(&desired);
                        assert_eq!(difference, crate::copies::diff::Difference::None, "seed {seed}: {key}");
                        let stale = ["x", "y"]
                            .iter()
                            .any(|key| found.labels.contains_key(*key) && !desired.labels.contains_key(*key));
                        assert!(!stale, "seed {seed}: {key} has a label that is gone above");
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
fn whatever_happens_copies_become_what_they_shall_be_and_nothing_else_is_touched() {
    for seed in 0..SEEDS {
        let mut storm = Storm::new(seed);
        for _ in 0..400 {
            storm.step();
            storm.check_foreign();
        }
        storm.clusters.pass(Duration::from_mins(15));
        storm.check_foreign();
        storm.check_wanted();
        for name in PODS {
            storm.clusters.release(name);
        }
        for key in storm.clusters.above.keys().cloned().collect::<Vec<_>>() {
            storm.clusters.take(key.0, &key.1, &key.2);
        }
        storm.clusters.pass(GRACE * 15);
        storm.check_foreign();
        let anchor = key(Kind::ConfigMap, &owner_config_map::name(&owner()));
        let ours = storm.clusters.below.keys().filter(|it| **it != anchor && !storm.foreign.contains_key(it));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&CopyKey>::new(), "seed {seed}: all is cleaned up");
        assert!(
            storm.clusters.watched.is_empty() && storm.clusters.state_machine.entries.is_empty(),
            "seed {seed}"
        );
    }
}
