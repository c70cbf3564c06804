//! Whether the machine runs short of something: what a kubelet tells as conditions of the node.

use jiff::{SignedDuration, Timestamp};
use vk_provider::{NodeTemplate, node::Condition};

use super::{Machine, Space};

/// Where a kubelet's default thresholds are.
const LEAST_MEMORY: u64 = 100 << 20;
const LEAST_SPACE_PERCENT: u64 = 10;
const LEAST_INODES_PERCENT: u64 = 5;
/// A kubelet has none for processes; a machine that cannot start any is in trouble all the same.
const LEAST_PROCESSES_PERCENT: u64 = 5;
/// How long a shortage is told after it was seen last, so that a node near the edge does not come and go.
const CALM: SignedDuration = SignedDuration::from_mins(5);

/// What there is too little of. `None` could not be measured, and is not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Strain {
    memory: Option<bool>,
    disk: Option<bool>,
    processes: Option<bool>,
}

/// Remembers when each shortage was seen last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    memory: Option<Timestamp>,
    disk: Option<Timestamp>,
    processes: Option<Timestamp>,
}

// === impl Pressure ===

impl Pressure {
    /// What to tell now.
    pub(super) fn look(&mut self, machine: &Machine, now: Timestamp) -> Strain {
        self.consider(measure(machine), now)
    }

    fn consider(&mut self, seen: Strain, now: Timestamp) -> Strain {
        let steady = |seen: Option<bool>, last: &mut Option<Timestamp>| {
            let short = seen?;
            if short {
                *last = Some(now);
            }
            Some(last.is_some_and(|last| now.duration_since(last) < CALM))
        };
        Strain {
            memory: steady(seen.memory, &mut self.memory),
            disk: steady(seen.disk, &mut self.disk),
            processes: steady(seen.processes, &mut self.processes),
        }
    }
}

fn measure(machine: &Machine) -> Strain {
    Strain {
        memory: machine.available_memory().map(|available| available < LEAST_MEMORY),
        disk: short_of_space(machine),
        processes: machine.processes().map(|(left, most)| below(left, most, LEAST_PROCESSES_PERCENT)),
    }
}

pub(super) fn short_of_space(machine: &Machine) -> Option<bool> {
    let space = machine.space().filter(|space| space.bytes > 0)?;
    Some(is_short(&space, machine.least_space))
}

fn is_short(space: &Space, least: Option<u64>) -> bool {
    // Some file systems make inodes as they go, and count none.
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

// === impl Strain ===

impl Strain {
    /// Puts the conditions into the node's description, in a kubelet's words; and takes out those that nobody measured.
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
    fn a_shortage_is_told_at_once_and_for_a_while_after_it_is_over() {
        let mut pressure = Pressure::default();
        let short = |short| Strain { memory: Some(short), disk: Some(false), processes: None };
        assert_eq!(pressure.consider(short(false), at(0)), short(false));
        assert_eq!(pressure.consider(short(true), at(10)), short(true));
        assert_eq!(pressure.consider(short(false), at(300)), short(true), "not yet calm");
        assert_eq!(pressure.consider(short(false), at(310)), short(false));
    }

    #[test]
    fn disk_is_short_of_bytes_or_of_inodes() {
        let space = |free_bytes, free_inodes, inodes| Space { bytes: 1000, free_bytes, inodes, free_inodes };
        assert!(!is_short(&space(100, 50, 1000), None));
        assert!(is_short(&space(99, 50, 1000), None));
        assert!(is_short(&space(100, 49, 1000), None));
        assert!(!is_short(&space(100, 0, 0), None), "inodes are not counted there");
        assert!(!is_short(&space(20, 50, 1000), Some(20)), "what is enough is the owner's to say");
        assert!(is_short(&space(19, 50, 1000), Some(20)));
        assert!(is_short(&space(20, 49, 1000), Some(20)));
    }

    #[test]
    fn what_nobody_measured_is_not_told() {
        let mut node = NodeTemplate::default();
        let told = |kind: &str| Condition {
            kind: kind.into(),
            status: ConditionStatus::False,
            reason: String::new(),
            message: String::new(),
        };
        node.conditions = vec![told("MemoryPressure"), told("DiskPressure"), told("Other")];
        Strain { memory: Some(true), disk: None, processes: None }.describe(&mut node);
        let kinds: Vec<(&str, ConditionStatus)> =
            node.conditions.iter().map(|known| (known.kind.as_str(), known.status)).collect();
        assert_eq!(kinds, [("Other", ConditionStatus::False), ("MemoryPressure", ConditionStatus::True)]);
    }
}
