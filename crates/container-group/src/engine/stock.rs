//! Places without stock.

use std::{collections::BTreeMap, time::Duration};

use crate::backend::{CallError, Class, Placement};

/// How long a place without stock is skipped.
const SKIP: Duration = Duration::from_mins(3);

/// Which places had no stock, and until when they are skipped.
#[derive(Debug, Default)]
pub(super) struct Stock(BTreeMap<Placement, Duration>);

// === impl Stock ===

impl Stock {
    /// The first place to try; `Ok(None)` if the cloud chooses.
    pub(super) fn choose(&self, now: Duration, places: &[Placement]) -> Result<Option<Placement>, CallError> {
        let free = places.iter().find(|place| self.is_free(now, place));
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

    /// A place has no stock. Returns whether another one can be tried.
    pub(super) fn exhausted(&mut self, now: Duration, place: &Placement, places: &[Placement]) -> bool {
        self.0.retain(|_, until| *until > now);
        self.0.insert(place.clone(), now + SKIP);
        places.iter().any(|place| self.is_free(now, place))
    }

    fn is_free(&self, now: Duration, place: &Placement) -> bool {
        self.0.get(place).is_none_or(|until| *until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_stock_is_skipped_for_three_minutes() {
        let place = |zone: &str| Placement { zone: Some(zone.to_owned()), size: None };
        let places = [place("a"), place("b")];
        let (mut stock, now) = (Stock::default(), Duration::from_secs(10));
        assert_eq!(stock.choose(now, &places).unwrap(), Some(place("a")));
        assert!(stock.exhausted(now, &place("a"), &places));
        assert_eq!(stock.choose(now, &places).unwrap(), Some(place("b")));
        assert!(!stock.exhausted(now, &place("b"), &places));
        assert_eq!(stock.choose(now, &places).unwrap_err().class, Class::OutOfStock);
        assert_eq!(stock.choose(now + SKIP, &places).unwrap(), Some(place("a")));
        assert_eq!(stock.choose(now, &[]).unwrap(), None, "the cloud chooses");
    }
}
