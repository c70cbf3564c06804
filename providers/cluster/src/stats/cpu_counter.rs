//! Counters that only grow, of figures that come and go.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use jiff::Timestamp;

/// What was read of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) at: Timestamp,
    pub(super) cpu: Option<Cpu>,
    /// The working set, in bytes.
    pub(super) memory: Option<u64>,
}

/// Use of processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cpu {
    /// Billionths of a core, on average over this time.
    Rate { nano_cores: u64, window: Duration },
    /// Nanoseconds since the container has started.
    Total(u64),
}

/// What is shown of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuUsage {
    /// Billionths of a core.
    pub(super) rate: Option<u64>,
    /// Nanoseconds in all. Never goes back.
    pub(super) total: u64,
}

#[derive(Clone, Copy, Debug)]
struct CpuCounter {
    at: Timestamp,
    /// What the counter below said last.
    counter: Option<u64>,
    usage: CpuUsage,
}

/// The counters of all containers.
#[derive(Debug, Default)]
pub(super) struct CpuCounters {
    pods: HashMap<String, HashMap<String, CpuCounter>>,
    /// Spent by pods that are gone: the node's counter does not go back with them.
    gone: u64,
}

impl CpuCounters {
    /// Takes a reading in.
    pub(super) fn read(&mut self, uid: &str, container: &str, reading: &Sample) -> CpuUsage {
        let Some(cpu) = reading.cpu else { return CpuUsage::default() };
        let pod = match self.pods.get_mut(uid) {
            Some(pod) => pod,
            None => self.pods.entry(uid.to_owned()).or_default(),
        };
        if let Some(counter) = pod.get_mut(container) {
            return counter.read(reading.at, cpu);
        }
        let counter = CpuCounter::begin(reading.at, cpu);
        pod.insert(container.to_owned(), counter);
        counter.usage
    }

    /// Lets go of pods that are not there any more. Answers what all that there were have spent.
    pub(super) fn keep(&mut self, there: &HashSet<&str>) -> u64 {
        let spent =
            |pod: &HashMap<String, CpuCounter>| pod.values().map(|counter| counter.usage.total).sum::<u64>();
        let gone = &mut self.gone;
        self.pods.retain(|uid, pod| {
            let stays = there.contains(uid.as_str());
            if !stays {
                *gone = gone.saturating_add(spent(pod));
            }
            stays
        });
        self.gone.saturating_add(self.pods.values().map(spent).sum())
    }
}

impl CpuCounter {
    fn begin(at: Timestamp, cpu: Cpu) -> Self {
        match cpu {
            Cpu::Rate { nano_cores, window } => {
                let usage = CpuUsage { rate: Some(nano_cores), total: spent(nano_cores, window) };
                Self { at, counter: None, usage }
            }
            Cpu::Total(total) => Self { at, counter: Some(total), usage: CpuUsage { rate: None, total } },
        }
    }

    fn read(&mut self, at: Timestamp, cpu: Cpu) -> CpuUsage {
        // The same figures twice, or older ones from another place.
        let Some(since) =
            Duration::try_from(at.duration_since(self.at)).ok().filter(|since| !since.is_zero())
        else {
            return self.usage;
        };
        match cpu {
            Cpu::Rate { nano_cores, .. } => {
                self.usage.rate = Some(nano_cores);
                self.usage.total = self.usage.total.saturating_add(spent(nano_cores, since));
                self.counter = None;
            }
            Cpu::Total(total) => {
                if let Some(before) = self.counter {
                    // One that is smaller began anew, with the container.
                    let more = total.checked_sub(before).unwrap_or(total);
                    self.usage.rate = Some(per_second(more, since));
                    self.usage.total = self.usage.total.saturating_add(more);
                }
                self.counter = Some(total);
            }
        }
        self.at = at;
        self.usage
    }
}

/// Nanoseconds of processor time at a rate.
fn spent(nano_cores: u64, time: Duration) -> u64 {
    let spent = u128::from(nano_cores).saturating_mul(time.as_nanos()) / 1_000_000_000;
    u64::try_from(spent).unwrap_or(u64::MAX)
}

fn per_second(nanos: u64, time: Duration) -> u64 {
    let rate = u128::from(nanos) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn reading(second: i64, cpu: Cpu) -> Sample {
        Sample { at: at(second), cpu: Some(cpu), memory: None }
    }

    fn rate(nano_cores: u64) -> Cpu {
        Cpu::Rate { nano_cores, window: Duration::from_secs(10) }
    }

    #[test]
    fn rates_are_added_up_over_the_time_between_them() {
        let mut counters = CpuCounters::default();
        let mut read = |second, cpu| counters.read("u", "c", &reading(second, cpu));
        assert_eq!(read(100, rate(SECOND / 2)), CpuUsage { rate: Some(SECOND / 2), total: 5 * SECOND });
        assert_eq!(read(120, rate(SECOND)), CpuUsage { rate: Some(SECOND), total: 25 * SECOND });
        assert_eq!(read(120, rate(SECOND)).total, 25 * SECOND, "the same figure counts once");
        assert_eq!(read(110, rate(SECOND)).total, 25 * SECOND, "and an older one not at all");
    }

    #[test]
    fn a_counter_is_shown_as_it_is_and_a_container_that_restarts_does_not_take_it_back() {
        let mut counters = CpuCounters::default();
        let mut read = |second, total| counters.read("u", "c", &reading(second, Cpu::Total(total)));
        assert_eq!(read(100, 7 * SECOND), CpuUsage { rate: None, total: 7 * SECOND });
        assert_eq!(read(110, 12 * SECOND), CpuUsage { rate: Some(SECOND / 2), total: 12 * SECOND });
        assert_eq!(read(120, SECOND), CpuUsage { rate: Some(SECOND / 10), total: 13 * SECOND });
    }

    #[test]
    fn what_a_node_has_spent_stays_when_its_pods_go() {
        let mut counters = CpuCounters::default();
        counters.read("a", "c", &reading(100, Cpu::Total(3)));
        counters.read("b", "c", &reading(100, Cpu::Total(4)));
        assert_eq!(counters.keep(&["a", "b"].into()), 7);
        assert_eq!(counters.keep(&["b"].into()), 7);
        assert_eq!(counters.keep(&[].into()), 7);
        assert!(counters.pods.is_empty());
    }

    proptest! {
        #[test]
        fn no_counter_ever_goes_back(steps: Vec<(i16, bool, u32)>) {
            let (mut counters, mut before) = (CpuCounters::default(), 0);
            for (second, is_rate, value) in steps {
                let value = u64::from(value);
                let cpu = if is_rate { rate(value) } else { Cpu::Total(value) };
                let total = counters.read("u", "c", &reading(second.into(), cpu)).total;
                prop_assert!(total >= before);
                before = total;
            }
        }
    }
}
