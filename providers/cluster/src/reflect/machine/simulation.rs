//! The machine under seeded schedules: answers that come late, in any order, or not at all; watches that trail; other people's hands
//! on both sides; restarts. A foreign object is never touched, which the server below asserts. When the storm is over, what pods name
//! is below as it is above; and when no pod is left, nothing of ours is.

use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    super::GRACE,
    world::{World, needs, owner, place, pod},
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
    world: World,
    rng: StdRng,
    wanted: BTreeMap<&'static str, Vec<(Kind, &'static str)>>,
    /// What others made below.
    foreign: BTreeMap<Place, Value>,
    seed: u64,
}

impl Storm {
    fn new(seed: u64) -> Self {
        Self {
            world: World::of(Namespaces::Same, seed),
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
                self.world.hear_above();
            }
            15..30 => {
                self.world.hear_below();
            }
            30..38 => {
                self.world.answer_settle();
            }
            38..62 => self.answer(),
            62..70 => {
                let (kind, name) = (kind(&mut self.rng), self.name());
                if kind != Kind::ServiceAccount {
                    let object = object(kind, &mut self.rng);
                    // An object that never changes is deleted and made anew.
                    let key = (kind, "default".to_owned(), name.to_owned());
                    if self.world.above.get(&key).is_some_and(|known| known["immutable"] == true) {
                        self.world.take(kind, "default", name);
                    }
                    self.world.put(kind, "default", name, object);
                }
            }
            70..74 => {
                let (kind, name) = (kind(&mut self.rng), self.name());
                self.world.take(kind, "default", name);
            }
            74..82 => {
                let name = PODS[self.rng.random_range(0..PODS.len())];
                let count = self.rng.random_range(0..4);
                let all: Vec<_> = (0..count).map(|_| (kind(&mut self.rng), self.name())).collect();
                self.world.tell(Event::Wanted(pod(name), needs(&all)));
                self.wanted.insert(name, all);
            }
            82..86 => {
                let name = PODS[self.rng.random_range(0..PODS.len())];
                self.world.release(name);
                self.wanted.remove(name);
            }
            86..88 => self.meddle(),
            88..89 => self.world.break_watch(),
            89..90 => {
                let seed = self.rng.random();
                self.world.restart(seed);
                let wanted = self.wanted.clone();
                for (name, all) in wanted {
                    self.world.tell(Event::Wanted(pod(name), needs(&all)));
                }
            }
            _ => {
                self.world.now += Duration::from_millis(self.rng.random_range(0..30_000));
                self.world.tell(Event::Tick);
            }
        }
    }

    /// Some call ends, well or not, and perhaps without its answer being heard.
    fn answer(&mut self) {
        if self.world.calls.is_empty() {
            return;
        }
        let (place, call) = self.world.calls.remove(self.rng.random_range(0..self.world.calls.len()));
        let away = || Err(Error::new(ErrorKind::Timeout, "no answer"));
        let answer = match self.rng.random_range(0..10) {
            0 => away(),
            1 => {
                drop(self.world.serve(&place, &call));
                away()
            }
            _ => self.world.serve(&place, &call),
        };
        self.world.tell(Event::Answer(place, answer));
    }

    /// Other people's hands below: they make objects, and delete theirs and ours.
    fn meddle(&mut self) {
        let place = place(kind(&mut self.rng), self.name());
        if self.world.below.contains_key(&place) {
            self.foreign.remove(&place);
            self.world.take_below(&place);
        } else if self.rng.random_bool(0.4) {
            self.world.put_below(&place, json!({"metadata": {"labels": {"owner": "somebody"}}}));
            self.foreign.insert(place.clone(), self.world.below[&place].clone());
        }
    }

    fn check_foreign(&self) {
        for (place, object) in &self.foreign {
            assert_eq!(self.world.below.get(place), Some(object), "seed {}: {place} is foreign", self.seed);
        }
    }

    fn check_wanted(&self) {
        let seed = self.seed;
        for (name, all) in &self.wanted {
            let standing = self.world.machine.standing(&pod(name));
            assert_eq!(
                standing,
                Standing::Ready,
                "seed {seed}: {name} {:?}",
                self.world.machine.awaited(&pod(name))
            );
            for (kind, name) in needs(all).pairs() {
                let place = place(kind, &name);
                if self.foreign.contains_key(&place) {
                    continue;
                }
                let upper = self.world.above.get(&(kind, "default".to_owned(), name.clone()));
                let found = self.world.found(&place);
                match (upper, found) {
                    (None, found) if kind != Kind::ServiceAccount => {
                        assert_eq!(found, None, "seed {seed}: {place} is gone above");
                    }
                    (None, found) => assert!(found.is_some(), "seed {seed}: {place}"),
                    (Some(upper), Some(found)) => {
                        let forged = self.world.forged(&place, upper).unwrap();
                        let difference = found.against(&forged);
                        assert_eq!(
                            difference,
                            crate::reflect::twin::Difference::None,
                            "seed {seed}: {place}"
                        );
                        let stale = ["x", "y"]
                            .iter()
                            .any(|key| found.labels.contains_key(*key) && !forged.labels.contains_key(*key));
                        assert!(!stale, "seed {seed}: {place} has a label that is gone above");
                    }
                    (Some(_), None) => panic!("seed {seed}: {place} is missing below"),
                }
            }
        }
    }
}

impl Dependencies {
    fn pairs(&self) -> Vec<(Kind, String)> {
        named(self).map(|(kind, name)| (kind, name.to_owned())).collect()
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
        storm.world.pass(Duration::from_mins(15));
        storm.check_foreign();
        storm.check_wanted();
        for name in PODS {
            storm.world.release(name);
        }
        for key in storm.world.above.keys().cloned().collect::<Vec<_>>() {
            storm.world.take(key.0, &key.1, &key.2);
        }
        storm.world.pass(GRACE * 15);
        storm.check_foreign();
        let anchor = place(Kind::ConfigMap, &anchor::name(&owner()));
        let ours = storm.world.below.keys().filter(|it| **it != anchor && !storm.foreign.contains_key(it));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&Place>::new(), "seed {seed}: all is cleaned up");
        assert!(storm.world.watched.is_empty() && storm.world.machine.entries.is_empty(), "seed {seed}");
    }
}
