//! Amounts as a node tells them: processors in thousandths, all else in whole units.
//!
//! The API server refuses fractions of most resources, and a promise is rounded down.

use vk_provider::Quantity;

/// A part of an amount, rounded down.
pub(super) fn percent(name: &str, amount: Quantity, percent: u8) -> Quantity {
    let part = |grains: i64| {
        let part = i128::from(grains) * i128::from(percent) / 100;
        i64::try_from(part).unwrap_or(i64::MAX)
    };
    of_grains(name, part(grains(name, amount)))
}

/// An amount rounded down, in the notation that is usual for the resource: in whatever order amounts were added, the same is written.
pub(super) fn whole(name: &str, amount: Quantity) -> Quantity {
    of_grains(name, grains(name, amount))
}

/// How often the smallest amount of a resource that is told is in this one. Quantities round up, as Kubernetes does; so what is
/// missing to nothing is rounded up.
fn grains(name: &str, amount: Quantity) -> i64 {
    let missing = Quantity::units(0) - amount;
    let up = if name == "cpu" { missing.to_milli() } else { missing.to_units() };
    up.saturating_neg()
}

fn of_grains(name: &str, grains: i64) -> Quantity {
    match name {
        "cpu" => Quantity::milli(grains),
        "memory" | "ephemeral-storage" => Quantity::bytes(grains),
        _ if name.starts_with(super::HUGE_PAGES) => Quantity::bytes(grains),
        _ => Quantity::units(grains),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn a_part_of_an_amount_is_rounded_down_to_what_can_be_told() {
        for (name, whole, of, part) in [
            ("cpu", "1001m", 50, "500m"),
            ("cpu", "3", 33, "990m"),
            ("pods", "111", 50, "55"),
            ("example.com/gpu", "1", 99, "0"),
            ("memory", "3Gi", 50, "1536Mi"),
            ("memory", "1", 100, "1"),
            ("ephemeral-storage", "8Ei", 100, "9223372036854775807"),
        ] {
            let part_of = percent(name, amount(whole), of);
            assert_eq!(part_of, amount(part), "{of}% of {whole} {name}");
        }
    }

    #[test]
    fn fractions_that_the_api_server_refuses_are_not_told() {
        assert_eq!(whole("pods", amount("1500m")).to_string(), "1");
        assert_eq!(whole("cpu", amount("1500500u")).to_string(), "1500m");
        assert_eq!(whole("memory", amount("128974848000m")).to_string(), "123Mi");
        assert_eq!(whole("memory", amount("17179869184")).to_string(), "16Gi");
    }
}
