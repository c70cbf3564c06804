//! Places without stock.

use std::{collections::BTreeMap, time::Duration};

use crate::backend::{CallError, Class, Placement, Size};

/// How long a place without stock is skipped.
const SKIP: Duration = Duration::from_mins(3);

/// Which zones had no stock, for which size or for any, and until when they are skipped.
#[derive(Debug, Default)]
pub(super) struct Stock {
    sizes: BTreeMap<ZoneAndSize, Duration>,
    zones: BTreeMap<Option<String>, Duration>,
}

type ZoneAndSize = (Option<String>, Option<String>);

// === impl Stock ===

impl Stock {
    /// The first place to try for a group of this size; `Ok(None)` if the cloud chooses.
    pub(super) fn choose(
        &self,
        now: Duration,
        places: &[Placement],
        size: Option<&Size>,
    ) -> Result<Option<Placement>, CallError> {
        let free = places.iter().find(|place| self.is_free(now, place, size));
        match free {
            Some(place) => Ok(Some(place.clone())),
            None if places.is_empty() => Ok(None),
            None => {
                let names: Vec<String> = places.iter().map(ToString::to_string).collect();
                let text = format!("the cloud has no stock in any allowed place: {}", names.join("; "));
                Err(CallError::new(Class::OutOfStock, text))
            }
        }
    }

    /// A place has no stock for a group of this size.
    pub(super) fn exhausted(&mut self, now: Duration, place: &Placement, size: Option<&Size>) {
        self.sizes.retain(|_, until| *until > now);
        self.sizes.insert(zone_and_size(place, size), now + SKIP);
    }

    /// The zone of a place has no stock for any group.
    pub(super) fn zone_exhausted(&mut self, now: Duration, place: &Placement) {
        self.zones.retain(|_, until| *until > now);
        self.zones.insert(place.zone.clone(), now + SKIP);
    }

    fn is_free(&self, now: Duration, place: &Placement, size: Option<&Size>) -> bool {
        let size = self.sizes.get(&zone_and_size(place, size));
        size.into_iter().chain(self.zones.get(&place.zone)).all(|until| *until <= now)
    }
}

/// The size is that of the place, if it names one, else that of the group.
fn zone_and_size(place: &Placement, size: Option<&Size>) -> ZoneAndSize {
    let size = || size.map(ToString::to_string);
    (place.zone.clone(), place.size.clone().or_else(size))
}

#[cfg(test)]
mod tests {
    use vk_provider::Quantity;

    use super::*;

    fn size(cpu: i64) -> Size {
        Size { cpu: Quantity::units(cpu), memory: Quantity::bytes(cpu << 30), instance_type: None }
    }

    fn place(zone: &str) -> Placement {
        Placement { zone: Some(zone.to_owned()), size: None }
    }

    #[test]
    fn a_place_without_stock_is_skipped_for_three_minutes() {
        let places = [place("a"), place("b")];
        let small = size(1);
        let small = Some(&small);
        let (mut stock, now) = (Stock::default(), Duration::from_secs(10));
        assert_eq!(stock.choose(now, &places, small).unwrap(), Some(place("a")));
        stock.exhausted(now, &place("a"), small);
        assert_eq!(stock.choose(now, &places, small).unwrap(), Some(place("b")));
        stock.exhausted(now, &place("b"), small);
        assert_eq!(stock.choose(now, &places, small).unwrap_err().class, Class::OutOfStock);
        assert_eq!(stock.choose(now + SKIP, &places, small).unwrap(), Some(place("a")));
        assert_eq!(stock.choose(now, &[], small).unwrap(), None, "the cloud chooses");
    }

    #[test]
    fn a_size_without_stock_does_not_stop_other_sizes() {
        let places = [place("a")];
        let mut stock = Stock::default();
        stock.exhausted(Duration::ZERO, &place("a"), Some(&size(64)));
        assert!(stock.choose(Duration::ZERO, &places, Some(&size(64))).is_err());
        assert_eq!(stock.choose(Duration::ZERO, &places, Some(&size(1))).unwrap(), Some(place("a")));
    }

    #[test]
    fn a_place_with_a_size_of_its_own_is_skipped_for_all_groups() {
        let place = Placement { zone: Some("a".to_owned()), size: Some("2-4Gi".to_owned()) };
        let places = [place.clone()];
        let mut stock = Stock::default();
        stock.exhausted(Duration::ZERO, &place, Some(&size(1)));
        assert!(stock.choose(Duration::ZERO, &places, Some(&size(2))).is_err());
    }

    #[test]
    fn a_zone_without_stock_is_skipped_by_groups_of_all_sizes() {
        let places = [place("a"), place("b")];
        let (mut stock, now) = (Stock::default(), Duration::from_secs(10));
        stock.zone_exhausted(now, &place("a"));
        for cpu in [1, 64] {
            assert_eq!(stock.choose(now, &places, Some(&size(cpu))).unwrap(), Some(place("b")));
        }
        assert_eq!(stock.choose(now + SKIP, &places, Some(&size(1))).unwrap(), Some(place("a")));
    }
}
