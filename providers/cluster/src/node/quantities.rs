//! Rounding of resource amounts: milli-units for cpu, whole units for everything else.
//!
//! The API server rejects fractions of most resources. Amounts are rounded down, because they are promises.

use vk_provider::Quantity;

/// A percentage of an amount, rounded down.
pub(super) fn percent(name: &str, amount: Quantity, percent: u8) -> Quantity {
    let part = |smallest_units: i64| {
        let part = i128::from(smallest_units) * i128::from(percent) / 100;
        i64::try_from(part).unwrap_or(i64::MAX)
    };
    from_smallest_units(name, part(smallest_units(name, amount)))
}

/// An amount rounded down, in the usual notation of the resource, which does not depend on the order of additions.
pub(super) fn round_down(name: &str, amount: Quantity) -> Quantity {
    from_smallest_units(name, smallest_units(name, amount))
}

/// The number of smallest units in an amount. Quantities round up, as in Kubernetes, so the negated amount is rounded.
fn smallest_units(name: &str, amount: Quantity) -> i64 {
    let missing = Quantity::units(0) - amount;
    let up = if name == "cpu" { missing.to_milli() } else { missing.to_units() };
    up.saturating_neg()
}

fn from_smallest_units(name: &str, smallest_units: i64) -> Quantity {
    match name {
        "cpu" => Quantity::milli(smallest_units),
        "memory" | "ephemeral-storage" => Quantity::bytes(smallest_units),
        _ if name.starts_with(super::HUGE_PAGES) => Quantity::bytes(smallest_units),
        _ => Quantity::units(smallest_units),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn a_percentage_is_rounded_down() {
        for (name, total, of, part) in [
            ("cpu", "1001m", 50, "500m"),
            ("cpu", "3", 33, "990m"),
            ("pods", "111", 50, "55"),
            ("example.com/gpu", "1", 99, "0"),
            ("memory", "3Gi", 50, "1536Mi"),
            ("memory", "1", 100, "1"),
            ("ephemeral-storage", "8Ei", 100, "9223372036854775807"),
        ] {
            let part_of = percent(name, amount(total), of);
            assert_eq!(part_of, amount(part), "{of}% of {total} {name}");
        }
    }

    #[test]
    fn amounts_have_no_fractions_that_the_api_server_rejects() {
        assert_eq!(round_down("pods", amount("1500m")).to_string(), "1");
        assert_eq!(round_down("cpu", amount("1500500u")).to_string(), "1500m");
        assert_eq!(round_down("memory", amount("128974848000m")).to_string(), "123Mi");
        assert_eq!(round_down("memory", amount("17179869184")).to_string(), "16Gi");
    }
}
