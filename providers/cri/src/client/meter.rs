//! Cores in use, from two looks at the time used, where the runtime does not tell.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use vk_pod_engine::backend::{CpuUsage, PodUsage};

/// A look that is older says nothing about now.
const STALE: SignedDuration = SignedDuration::from_mins(10);
/// Two looks that are closer than this would measure noise.
const APART: SignedDuration = SignedDuration::from_millis(100);

/// Looks at processors' time, by whose it was.
#[derive(Debug, Default)]
pub(super) struct Meter {
    looks: HashMap<Whose, Look>,
}

type Whose = (String, Option<(String, u32)>);

#[derive(Clone, Copy, Debug)]
struct Look {
    time: Timestamp,
    total: u64,
    rate: Option<u64>,
}

// === impl Meter ===

impl Meter {
    /// Fills in what the runtime left out. Runtimes say nothing, or zero, until they have measured twice themselves.
    pub(super) fn complete(&mut self, pods: &mut [PodUsage]) {
        for pod in &mut *pods {
            let uid = pod.pod.uid.to_string();
            if let Some(cpu) = &mut pod.cpu {
                self.look((uid.clone(), None), cpu);
            }
            for container in &mut pod.containers {
                if let Some(cpu) = &mut container.cpu {
                    self.look((uid.clone(), Some((container.name.clone(), container.attempt))), cpu);
                }
            }
        }
        if let Some(newest) = self.looks.values().map(|look| look.time).max() {
            self.looks.retain(|_, look| newest.duration_since(look.time) < STALE);
        }
    }

    fn look(&mut self, whose: Whose, cpu: &mut CpuUsage) {
        cpu.nano_cores = cpu.nano_cores.filter(|cores| *cores > 0);
        let before = self.looks.get(&whose).copied();
        let elapsed = before.map(|before| cpu.time.duration_since(before.time));
        let rate = match (before, elapsed) {
            // The runtime answers from a cache: so do we.
            (Some(before), Some(elapsed)) if elapsed < APART => before.rate,
            (Some(before), Some(elapsed)) if elapsed < STALE => {
                // A total that went back is another process: nothing to compare with.
                cpu.total_nanos.checked_sub(before.total).and_then(|used| per_second(used, elapsed))
            }
            _ => None,
        };
        cpu.nano_cores = cpu.nano_cores.or(rate);
        if before.is_none() || elapsed.is_some_and(|elapsed| elapsed >= APART) {
            self.looks.insert(whose, Look { time: cpu.time, total: cpu.total_nanos, rate });
        }
    }
}

fn per_second(used: u64, elapsed: SignedDuration) -> Option<u64> {
    let rate = i128::from(used) * 1_000_000_000 / elapsed.as_nanos();
    u64::try_from(rate).ok()
}

#[cfg(test)]
mod tests {
    use vk_pod_engine::backend::ContainerUsage;
    use vk_provider::PodRef;

    use super::*;

    fn usage(second: i64, total: u64, cores: Option<u64>) -> Vec<PodUsage> {
        let time = Timestamp::from_second(1_000 + second).unwrap();
        let cpu = Some(CpuUsage { time, total_nanos: total, nano_cores: cores });
        let container =
            ContainerUsage { name: "main".into(), attempt: 0, cpu, memory: None, writable_layer: None };
        let pod = PodRef::new("default", "web", "uid-1");
        vec![PodUsage {
            pod,
            started: time,
            containers: vec![container],
            cpu,
            memory: None,
            interfaces: vec![],
        }]
    }

    fn cores(pods: &[PodUsage]) -> Option<u64> {
        let whole = pods[0].cpu.unwrap().nano_cores;
        assert_eq!(pods[0].containers[0].cpu.unwrap().nano_cores, whole, "the pod and its only container");
        whole
    }

    #[test]
    fn cores_in_use_are_known_from_the_second_look_on() {
        let mut meter = Meter::default();
        let mut first = usage(0, 5_000_000_000, Some(0));
        meter.complete(&mut first);
        assert_eq!(cores(&first), None);
        let mut second = usage(10, 7_500_000_000, None);
        meter.complete(&mut second);
        assert_eq!(cores(&second), Some(250_000_000));
        let mut same = usage(10, 7_500_000_000, None);
        meter.complete(&mut same);
        assert_eq!(cores(&same), Some(250_000_000), "the runtime answered from its cache");
    }

    #[test]
    fn what_the_runtime_measured_itself_stands() {
        let mut meter = Meter::default();
        meter.complete(&mut usage(0, 0, None));
        let mut second = usage(1, 1_000_000_000, Some(42));
        meter.complete(&mut second);
        assert_eq!(cores(&second), Some(42));
    }

    #[test]
    fn a_total_that_went_back_and_a_look_of_long_ago_are_not_compared() {
        let mut meter = Meter::default();
        meter.complete(&mut usage(0, 9_000_000_000, None));
        let mut less = usage(10, 1_000_000_000, None);
        meter.complete(&mut less);
        assert_eq!(cores(&less), None);
        let mut late = usage(10_000, 2_000_000_000, None);
        meter.complete(&mut late);
        assert_eq!(cores(&late), None);
    }
}
