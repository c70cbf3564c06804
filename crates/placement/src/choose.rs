//! Chooses a node among those that would take a pod.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use vk_provider::ability::Verdict;

use crate::cluster_state::UpperFit;

/// The name under which the nodes that cannot be asked are one candidate.
pub const LOCAL: &str = "local";

/// The highest score of an extender of kube-scheduler.
const BEST_SCORE: i64 = 10;
/// The score of a node that cannot tell whether a pod fits.
const LOW_SCORE: i64 = 1;

/// The preference among nodes that fit. Without an order and weights, only [`Prefer`] counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    /// Nodes in the order in which they are filled. Nodes that are not in it come last.
    pub order: Vec<String>,
    /// Weights of nodes; 1 for those without one. A node with a higher weight gets more pods: what is free on it counts that many times.
    pub weights: BTreeMap<String, u32>,
    /// What decides between nodes that are equal otherwise.
    pub prefer: Prefer,
}

/// Which of several nodes is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// The emptiest.
    #[default]
    Spread,
    /// The fullest.
    Pack,
}

/// A node that would take a pod, or may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The name of the node, or [`LOCAL`].
    pub(crate) name: Arc<str>,
    pub(crate) certainty: Certainty,
    /// For how many pods there is room.
    pub(crate) room: u32,
    /// How full the node is with the first of them, in per cent.
    pub(crate) fullness: u8,
    /// How many of them were placed since.
    pub(crate) placed: u32,
    /// How many trials of such pods have failed there in a row.
    pub(crate) failures: u32,
    /// Whether kube-scheduler would bind the pods there for sure.
    pub(crate) is_certain_above: bool,
}

/// How good a node is, whatever the preference. Better ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Certainty {
    /// It fits.
    Fits,
    /// The node cannot tell.
    Unknown,
    /// A pod of the same controller was evicted from there, because it was stuck.
    Avoided,
}

// === impl Preference ===

impl Preference {
    /// The best node that has room left.
    pub(crate) fn best<'a>(&self, choices: &'a mut [Choice]) -> Option<&'a mut Choice> {
        let with_room = choices.iter_mut().filter(|choice| choice.placed < choice.room);
        with_room.min_by(|one, other| self.key(one).cmp(&self.key(other)))
    }

    /// Scores of choices, as extenders of kube-scheduler give them: from 0 to 10, and higher for better ones.
    pub(crate) fn scores(&self, choices: &[Choice]) -> Vec<i64> {
        let worth = |choice: &Choice| {
            let weight = u64::from(self.weights.get(&*choice.name).copied().unwrap_or(1));
            let full = u64::from(choice.fullness_now());
            weight * if self.prefer == Prefer::Spread { 1000 - full } else { full }
        };
        let fitting = || choices.iter().filter(|choice| choice.certainty == Certainty::Fits);
        let most = fitting().map(worth).max().unwrap_or_default().max(1);
        let positions: BTreeSet<usize> = fitting().map(|choice| self.position(choice)).collect();
        let score = |choice: &Choice| match choice.certainty {
            Certainty::Avoided => 0,
            Certainty::Unknown => LOW_SCORE,
            Certainty::Fits if self.order.is_empty() => {
                let share = i64::try_from(worth(choice) * 8 / most).unwrap_or_default();
                BEST_SCORE - 8 + share
            }
            Certainty::Fits => {
                let rank = positions.range(..self.position(choice)).count();
                (BEST_SCORE - i64::try_from(rank).unwrap_or(BEST_SCORE)).max(LOW_SCORE + 1)
            }
        };
        choices.iter().map(score).collect()
    }

    /// The position in the order. Nodes that are not in it come last.
    fn position(&self, choice: &Choice) -> usize {
        self.order.iter().position(|name| **name == *choice.name).unwrap_or(self.order.len())
    }

    /// Sorts better choices first.
    fn key<'a>(&self, choice: &'a Choice) -> (u32, Certainty, usize, Reverse<u64>, &'a str) {
        let weight = u64::from(self.weights.get(&*choice.name).copied().unwrap_or(1));
        let free = u64::from(1000 - choice.fullness_now());
        let score = match self.prefer {
            Prefer::Spread => free * weight,
            Prefer::Pack => (1000 - free) * weight,
        };
        // All nodes are tried before one is tried again.
        (choice.failures, choice.certainty, self.position(choice), Reverse(score), &choice.name)
    }
}

// === impl Choice ===

impl Choice {
    /// A node that can be asked, with its answer; `None` if it refuses. `placed` pods have come since it answered.
    pub(crate) fn of(
        node: &Arc<str>,
        verdict: &Verdict,
        placed: u32,
        upper: UpperFit,
        is_avoided: bool,
    ) -> Option<Self> {
        // What the upper cluster has room for does not include pods that were placed before.
        let above = upper.room.saturating_add(placed);
        let (certainty, room, fullness) = match verdict {
            Verdict::Fits { room, fullness } => (Certainty::Fits, above.min(*room), *fullness),
            Verdict::Unknown { .. } => (Certainty::Unknown, above, upper.fullness),
            Verdict::Refused { .. } => return None,
        };
        let certainty = if is_avoided { Certainty::Avoided } else { certainty };
        Some(Self {
            name: Arc::clone(node),
            certainty,
            room,
            fullness,
            placed,
            failures: 0,
            is_certain_above: true,
        })
    }

    /// The nodes that cannot be asked, as one choice.
    pub(crate) fn of_local(verdict: &Verdict) -> Option<Self> {
        let (certainty, room, fullness) = match verdict {
            Verdict::Fits { room, fullness } => (Certainty::Fits, *room, *fullness),
            Verdict::Unknown { .. } => (Certainty::Unknown, u32::MAX, 100),
            Verdict::Refused { .. } => return None,
        };
        let is_certain_above = certainty == Certainty::Fits;
        Some(Self { name: LOCAL.into(), certainty, room, fullness, placed: 0, failures: 0, is_certain_above })
    }

    /// A node that cannot be asked, of which nothing is known here.
    pub(crate) fn of_machine() -> Self {
        Self {
            name: LOCAL.into(),
            certainty: Certainty::Fits,
            room: 1,
            fullness: 50,
            placed: 0,
            failures: 0,
            is_certain_above: true,
        }
    }

    /// How full the node is with another pod, in thousandths: as if each pod that was placed took an equal part of what was free.
    fn fullness_now(&self) -> u32 {
        let fullness = 10 * u32::from(self.fullness.min(100));
        let (free, room) = (u64::from(1000 - fullness), u64::from(self.room.max(1)));
        let taken = free * u64::from(self.placed.min(self.room)) / room;
        fullness + u32::try_from(taken).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(name: &str, room: u32, fullness: u8) -> Choice {
        Choice { name: name.into(), room, fullness, ..Choice::of_machine() }
    }

    /// The nodes that get pods one after the other.
    fn placed(preference: &Preference, mut choices: Vec<Choice>, pods: usize) -> String {
        let mut names = Vec::new();
        for _ in 0..pods {
            let Some(best) = preference.best(&mut choices) else { break };
            best.placed += 1;
            names.push(best.name.to_string());
        }
        names.join("")
    }

    #[test]
    fn pods_are_spread_over_equal_nodes() {
        let choices = vec![choice("a", 4, 20), choice("b", 4, 20)];
        assert_eq!(placed(&Preference::default(), choices, 9), "abababab");
    }

    #[test]
    fn the_emptiest_node_is_filled_up_to_the_others_first() {
        let choices = vec![choice("a", 2, 80), choice("b", 8, 20)];
        assert_eq!(placed(&Preference::default(), choices, 7), "bbbbbba");
    }

    #[test]
    fn packing_fills_one_node_after_the_other() {
        let preference = Preference { prefer: Prefer::Pack, ..Preference::default() };
        let choices = vec![choice("a", 3, 20), choice("b", 3, 60)];
        assert_eq!(placed(&preference, choices, 6), "bbbaaa");
    }

    #[test]
    fn the_order_decides_before_fullness_and_names_that_are_not_in_it_come_last() {
        let order = ["b", "a"].map(ToOwned::to_owned).to_vec();
        let preference = Preference { order, ..Preference::default() };
        let choices = vec![choice("a", 2, 10), choice("b", 2, 90), choice("c", 1, 0)];
        assert_eq!(placed(&preference, choices, 5), "bbaac");
    }

    #[test]
    fn a_node_with_twice_the_weight_gets_more_pods() {
        let weights = BTreeMap::from([("a".to_owned(), 2)]);
        let preference = Preference { weights, ..Preference::default() };
        let choices = vec![choice("a", 100, 1), choice("b", 100, 1)];
        let names = placed(&preference, choices, 90);
        // What is free on `a`, twice, is then as much as what is free on `b`.
        assert_eq!(names.matches('a').count(), 64, "{names}");
        assert_eq!(names.matches('b').count(), 26, "{names}");
    }

    #[test]
    fn scores_follow_the_order_or_else_what_is_free() {
        let unknown = Choice { certainty: Certainty::Unknown, ..choice("u", 1, 0) };
        let avoided = Choice { certainty: Certainty::Avoided, ..choice("v", 1, 0) };
        let choices = [choice("a", 9, 0), choice("b", 9, 50), choice("c", 9, 100), unknown, avoided];
        let scores = |preference: Preference| preference.scores(&choices);
        assert_eq!(scores(Preference::default()), [10, 6, 2, 1, 0]);
        assert_eq!(scores(Preference { prefer: Prefer::Pack, ..Preference::default() }), [2, 6, 10, 1, 0]);
        let order = ["c", "gone", "b"].map(ToOwned::to_owned).to_vec();
        assert_eq!(scores(Preference { order, ..Preference::default() }), [8, 9, 10, 1, 0]);
        let weights = BTreeMap::from([("b".to_owned(), 4)]);
        assert_eq!(scores(Preference { weights, ..Preference::default() }), [6, 10, 2, 1, 0]);
        let order = (0..20).map(|index| format!("n{index}")).collect();
        let many: Vec<_> = (0..20).map(|index| choice(&format!("n{index}"), 1, 0)).collect();
        let scores = Preference { order, ..Preference::default() }.scores(&many);
        assert!(scores.is_sorted_by(|one, next| one >= next) && scores[19] == 2, "{scores:?}");
    }

    #[test]
    fn all_nodes_are_tried_before_one_is_tried_again() {
        let choices = vec![
            Choice { failures: 1, ..choice("a", 1, 0) },
            Choice { certainty: Certainty::Unknown, ..choice("b", 1, 0) },
            choice("c", 1, 100),
            Choice { failures: 2, ..choice("d", 1, 0) },
        ];
        assert_eq!(placed(&Preference::default(), choices, 5), "cbad");
    }

    #[test]
    fn nodes_that_cannot_tell_come_after_all_that_fit_and_avoided_ones_last() {
        let with = |certainty, choice| Choice { certainty, ..choice };
        let choices = vec![
            with(Certainty::Avoided, choice("a", 1, 0)),
            with(Certainty::Unknown, choice("b", 1, 0)),
            choice("c", 1, 100),
        ];
        let order = ["a", "b", "c"].map(ToOwned::to_owned).to_vec();
        let preference = Preference { order, ..Preference::default() };
        assert_eq!(placed(&preference, choices, 4), "cba");
    }
}
