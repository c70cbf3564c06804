//! Resource pressure of the host, which a kubelet reports as node conditions.

use jiff::{SignedDuration, Timestamp};
use vk_provider::{NodeTemplate, node::Condition};

use super::{FsSpace, Host};

/// The kubelet's default thresholds.
const LEAST_MEMORY: u64 = 100 << 20;
const LEAST_SPACE_PERCENT: u64 = 10;
const LEAST_INODES_PERCENT: u64 = 5;
/// A kubelet has no default threshold for processes, but a host that cannot start any cannot run pods.
const LEAST_PROCESSES_PERCENT: u64 = 5;
/// How long pressure is reported after it was measured last, so that a node near the threshold does not flap.
const TRANSITION_PERIOD: SignedDuration = SignedDuration::from_mins(5);

/// The kinds of pressure. `None` could not be measured and is not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pressures {
    memory: Option<bool>,
    disk: Option<bool>,
    processes: Option<bool>,
}

/// Remembers when each kind of pressure was measured last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PressureTracker {
    memory: Option<Timestamp>,
    disk: Option<Timestamp>,
    processes: Option<Timestamp>,
}

// === impl PressureTracker ===

impl PressureTracker {
    /// Measures the host and returns the pressure to report.
    pub(super) fn update(&mut self, host: &Host, now: Timestamp) -> Pressures {
        self.record(measure(host), now)
    }

    fn record(&mut self, measured: Pressures, now: Timestamp) -> Pressures {
        let steady = |seen: Option<bool>, last: &mut Option<Timestamp>| {
            let short = seen?;
            if short {
                *last = Some(now);
            }
            // A time in the future means that the clock was set back.
            Some(last.is_some_and(|last| {
                (SignedDuration::ZERO..TRANSITION_PERIOD).contains(&now.duration_since(last))
            }))
        };
        Pressures {
            memory: steady(measured.memory, &mut self.memory),
            disk: steady(measured.disk, &mut self.disk),
            processes: steady(measured.processes, &mut self.processes),
        }
    }
}

fn measure(host: &Host) -> Pressures {
    Pressures {
        memory: host.available_memory().map(|available| available < LEAST_MEMORY),
        disk: has_disk_pressure(host),
        processes: host.processes().map(|(left, most)| below(left, most, LEAST_PROCESSES_PERCENT)),
    }
}

pub(super) fn has_disk_pressure(host: &Host) -> Option<bool> {
    let space = host.space().filter(|space| space.bytes > 0)?;
    Some(is_short(&space, host.min_free_space))
}

fn is_short(space: &FsSpace, least: Option<u64>) -> bool {
    // Some file systems allocate inodes on demand and report none.
    let inodes = space.inodes > 0 && below(space.free_inodes, space.inodes, LEAST_INODES_PERCENT);
    inodes
        || match least {
            Some(least) => space.free_bytes < least,
            None => below(space.free_bytes, space.bytes, LEAST_SPACE_PERCENT),
        }
}

fn below(left: u64, all: u64, percent: u64) -> bool {
    u128::from(left) * 100 < u128::from(all) * u128::from(percent)
}

// === impl Pressures ===

impl Pressures {
    /// Sets the node conditions with the kubelet's texts, and removes those that were not measured.
    pub(super) fn describe(self, node: &mut NodeTemplate) {
        let all = [
            (
                "MemoryPressure",
                self.memory,
                ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
                ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ),
            (
                "DiskPressure",
                self.disk,
                ("KubeletHasDiskPressure", "kubelet has disk pressure"),
                ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ),
            (
                "PIDPressure",
                self.processes,
                ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
                ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ),
        ];
        for (kind, short, bad, good) in all {
            node.conditions.retain(|condition| condition.kind != kind);
            let Some(short) = short else { continue };
            let (reason, message) = if short { bad } else { good };
            node.set_condition(Condition {
                kind: kind.to_owned(),
                status: short.into(),
                reason: reason.to_owned(),
                message: message.to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use vk_provider::node::ConditionStatus;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pressure_is_reported_at_once_and_for_a_while_after_it_ends() {
        let mut tracker = PressureTracker::default();
        let short = |short| Pressures { memory: Some(short), disk: Some(false), processes: None };
        assert_eq!(tracker.record(short(false), at(0)), short(false));
        assert_eq!(tracker.record(short(true), at(10)), short(true));
        assert_eq!(tracker.record(short(false), at(300)), short(true), "transition period");
        assert_eq!(tracker.record(short(false), at(310)), short(false));
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_prolong_pressure() {
        let mut tracker = PressureTracker::default();
        let short = |short| Pressures { memory: Some(short), disk: None, processes: None };
        assert_eq!(tracker.record(short(true), at(21_600)), short(true));
        assert_eq!(tracker.record(short(false), at(0)), short(false));
    }

    #[test]
    fn disk_is_short_of_bytes_or_of_inodes() {
        let space =
            |free_bytes, free_inodes, inodes| FsSpace { bytes: 1000, free_bytes, inodes, free_inodes };
        assert!(!is_short(&space(100, 50, 1000), None));
        assert!(is_short(&space(99, 50, 1000), None));
        assert!(is_short(&space(100, 49, 1000), None));
        assert!(!is_short(&space(100, 0, 0), None), "the file system reports no inodes");
        assert!(!is_short(&space(20, 50, 1000), Some(20)), "the configured threshold counts");
        assert!(is_short(&space(19, 50, 1000), Some(20)));
        assert!(is_short(&space(20, 49, 1000), Some(20)));
    }

    #[test]
    fn what_was_not_measured_is_not_reported() {
        let mut node = NodeTemplate::default();
        let condition = |kind: &str| Condition {
            kind: kind.into(),
            status: ConditionStatus::False,
            reason: String::new(),
            message: String::new(),
        };
        node.conditions = vec![condition("MemoryPressure"), condition("DiskPressure"), condition("Other")];
        Pressures { memory: Some(true), disk: None, processes: None }.describe(&mut node);
        let kinds: Vec<(&str, ConditionStatus)> =
            node.conditions.iter().map(|known| (known.kind.as_str(), known.status)).collect();
        assert_eq!(kinds, [("Other", ConditionStatus::False), ("MemoryPressure", ConditionStatus::True)]);
    }
}
