//! Computes CPU usage in cores from two samples of CPU time, for runtimes that do not report it.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use vk_pod_engine::backend::{CpuUsage, PodUsage};

/// The maximum age of a sample.
const MAX_AGE: SignedDuration = SignedDuration::from_mins(10);
/// The minimum interval between two samples; shorter ones measure noise.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_millis(100);

/// Samples of the CPU time of pods and containers.
#[derive(Debug, Default)]
pub(super) struct CpuRateTracker {
    samples: HashMap<SampleKey, CpuSample>,
}

type SampleKey = (String, Option<(String, u32)>);

#[derive(Clone, Copy, Debug)]
struct CpuSample {
    time: Timestamp,
    total: u64,
    rate: Option<u64>,
}

// === impl CpuRateTracker ===

impl CpuRateTracker {
    /// Fills in the rates that the runtime left out. Runtimes report nothing, or zero, until they have measured twice.
    pub(super) fn fill_in_rates(&mut self, pods: &mut [PodUsage]) {
        for pod in &mut *pods {
            let uid = pod.pod.uid.to_string();
            if let Some(cpu) = &mut pod.cpu {
                self.add_sample((uid.clone(), None), cpu);
            }
            for container in &mut pod.containers {
                if let Some(cpu) = &mut container.cpu {
                    self.add_sample((uid.clone(), Some((container.name.clone(), container.attempt))), cpu);
                }
            }
        }
        if let Some(newest) = self.samples.values().map(|sample| sample.time).max() {
            self.samples.retain(|_, sample| newest.duration_since(sample.time) < MAX_AGE);
        }
    }

    fn add_sample(&mut self, key: SampleKey, cpu: &mut CpuUsage) {
        cpu.nano_cores = cpu.nano_cores.filter(|cores| *cores > 0);
        let before = self.samples.get(&key).copied();
        let elapsed = before.map(|before| cpu.time.duration_since(before.time));
        let rate = match (before, elapsed) {
            // The runtime returned a cached sample: keep the last rate.
            (Some(before), Some(elapsed)) if elapsed < MIN_INTERVAL => before.rate,
            (Some(before), Some(elapsed)) if elapsed < MAX_AGE => {
                // A total that decreased belongs to another process.
                cpu.total_nanos.checked_sub(before.total).and_then(|used| per_second(used, elapsed))
            }
            _ => None,
        };
        cpu.nano_cores = cpu.nano_cores.or(rate);
        if before.is_none() || elapsed.is_some_and(|elapsed| elapsed >= MIN_INTERVAL) {
            self.samples.insert(key, CpuSample { time: cpu.time, total: cpu.total_nanos, rate });
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
    fn the_rate_is_known_from_the_second_sample_on() {
        let mut tracker = CpuRateTracker::default();
        let mut first = usage(0, 5_000_000_000, Some(0));
        tracker.fill_in_rates(&mut first);
        assert_eq!(cores(&first), None);
        let mut second = usage(10, 7_500_000_000, None);
        tracker.fill_in_rates(&mut second);
        assert_eq!(cores(&second), Some(250_000_000));
        let mut same = usage(10, 7_500_000_000, None);
        tracker.fill_in_rates(&mut same);
        assert_eq!(cores(&same), Some(250_000_000), "the runtime answered from its cache");
    }

    #[test]
    fn a_rate_from_the_runtime_is_kept() {
        let mut tracker = CpuRateTracker::default();
        tracker.fill_in_rates(&mut usage(0, 0, None));
        let mut second = usage(1, 1_000_000_000, Some(42));
        tracker.fill_in_rates(&mut second);
        assert_eq!(cores(&second), Some(42));
    }

    #[test]
    fn a_decreased_total_and_an_old_sample_are_ignored() {
        let mut tracker = CpuRateTracker::default();
        tracker.fill_in_rates(&mut usage(0, 9_000_000_000, None));
        let mut less = usage(10, 1_000_000_000, None);
        tracker.fill_in_rates(&mut less);
        assert_eq!(cores(&less), None);
        let mut late = usage(10_000, 2_000_000_000, None);
        tracker.fill_in_rates(&mut late);
        assert_eq!(cores(&late), None);
    }
}
