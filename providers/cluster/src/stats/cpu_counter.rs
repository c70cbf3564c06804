//! Monotonic CPU counters from rates and counters that come and go.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use jiff::Timestamp;

/// A sample of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UsageSample {
    pub(super) at: Timestamp,
    pub(super) cpu: Option<Cpu>,
    /// The working set in bytes.
    pub(super) memory: Option<u64>,
}

/// CPU usage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cpu {
    /// Nanocores, averaged over a window.
    Rate { nano_cores: u64, window: Duration },
    /// Nanoseconds since the start of the container.
    Total(u64),
}

/// The reported CPU usage of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerCpu {
    /// Nanocores.
    pub(super) rate: Option<u64>,
    /// Nanoseconds in total, which never decrease.
    pub(super) total: u64,
}

#[derive(Clone, Copy, Debug)]
struct CpuCounter {
    at: Timestamp,
    /// The last value of the lower counter.
    counter: Option<u64>,
    usage: ContainerCpu,
}

/// The counters of all containers.
#[derive(Debug, Default)]
pub(super) struct CpuCounters {
    pods: HashMap<String, HashMap<String, CpuCounter>>,
    /// The total of deleted pods, so that the counter of the node never decreases.
    gone: u64,
}

impl CpuCounters {
    /// Adds a sample.
    pub(super) fn add_sample(&mut self, uid: &str, container: &str, sample: &UsageSample) -> ContainerCpu {
        let Some(cpu) = sample.cpu else { return ContainerCpu::default() };
        let pod = match self.pods.get_mut(uid) {
            Some(pod) => pod,
            None => self.pods.entry(uid.to_owned()).or_default(),
        };
        if let Some(counter) = pod.get_mut(container) {
            return counter.add(sample.at, cpu);
        }
        let counter = CpuCounter::begin(sample.at, cpu);
        pod.insert(container.to_owned(), counter);
        counter.usage
    }

    /// Drops pods that do not exist any more. Returns the total of all pods that ever existed.
    pub(super) fn retain(&mut self, there: &HashSet<&str>) -> u64 {
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
                let usage = ContainerCpu { rate: Some(nano_cores), total: spent(nano_cores, window) };
                Self { at, counter: None, usage }
            }
            Cpu::Total(total) => Self { at, counter: Some(total), usage: ContainerCpu { rate: None, total } },
        }
    }

    fn add(&mut self, at: Timestamp, cpu: Cpu) -> ContainerCpu {
        // Ignores repeated samples and older ones from another source.
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
                    // A smaller counter was reset by a restart of the container.
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

/// Nanoseconds of CPU time at a rate.
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

    fn sample(second: i64, cpu: Cpu) -> UsageSample {
        UsageSample { at: at(second), cpu: Some(cpu), memory: None }
    }

    fn rate(nano_cores: u64) -> Cpu {
        Cpu::Rate { nano_cores, window: Duration::from_secs(10) }
    }

    #[test]
    fn rates_are_integrated_over_time() {
        let mut counters = CpuCounters::default();
        let mut read = |second, cpu| counters.add_sample("u", "c", &sample(second, cpu));
        assert_eq!(read(100, rate(SECOND / 2)), ContainerCpu { rate: Some(SECOND / 2), total: 5 * SECOND });
        assert_eq!(read(120, rate(SECOND)), ContainerCpu { rate: Some(SECOND), total: 25 * SECOND });
        assert_eq!(read(120, rate(SECOND)).total, 25 * SECOND, "the same figure counts once");
        assert_eq!(read(110, rate(SECOND)).total, 25 * SECOND, "and an older one not at all");
    }

    #[test]
    fn a_counter_survives_the_restart_of_a_container() {
        let mut counters = CpuCounters::default();
        let mut read = |second, total| counters.add_sample("u", "c", &sample(second, Cpu::Total(total)));
        assert_eq!(read(100, 7 * SECOND), ContainerCpu { rate: None, total: 7 * SECOND });
        assert_eq!(read(110, 12 * SECOND), ContainerCpu { rate: Some(SECOND / 2), total: 12 * SECOND });
        assert_eq!(read(120, SECOND), ContainerCpu { rate: Some(SECOND / 10), total: 13 * SECOND });
    }

    #[test]
    fn the_total_of_the_node_includes_deleted_pods() {
        let mut counters = CpuCounters::default();
        counters.add_sample("a", "c", &sample(100, Cpu::Total(3)));
        counters.add_sample("b", "c", &sample(100, Cpu::Total(4)));
        assert_eq!(counters.retain(&["a", "b"].into()), 7);
        assert_eq!(counters.retain(&["b"].into()), 7);
        assert_eq!(counters.retain(&[].into()), 7);
        assert!(counters.pods.is_empty());
    }

    proptest! {
        #[test]
        fn counters_never_decrease(steps: Vec<(i16, bool, u32)>) {
            let (mut counters, mut before) = (CpuCounters::default(), 0);
            for (second, is_rate, value) in steps {
                let value = u64::from(value);
                let cpu = if is_rate { rate(value) } else { Cpu::Total(value) };
                let total = counters.add_sample("u", "c", &sample(second.into(), cpu)).total;
                prop_assert!(total >= before);
                before = total;
            }
        }
    }
}
