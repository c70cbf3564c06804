//! Prices of groups.

use vk_container_group::backend::{Price, Size};
use vk_provider::Quantity;

use crate::{
    api::{GroupPrice, Parameters},
    config::PriceList,
};

/// The service names prices for a second.
const SECONDS_PER_HOUR: f64 = 3600.0;

/// The price by the list of the configuration.
pub(crate) fn of_list(list: &PriceList, size: &Size) -> Price {
    let per_hour = cpus(size.cpu).mul_add(list.cpu_hour, gibibytes(size.memory) * list.memory_gib_hour);
    Price { per_hour, currency: list.currency.clone() }
}

/// The parameters of the question for a price.
pub(crate) fn question(size: &Size) -> Parameters {
    let mut parameters = Parameters::default();
    parameters.set("Cpu", cpus(size.cpu));
    parameters.set("Memory", gibibytes(size.memory));
    parameters.set_some("InstanceType", size.instance_type.as_ref());
    parameters
}

/// The price in the answer; `None` if there is none.
pub(crate) fn of_answer(answer: &GroupPrice) -> Option<Price> {
    let price = answer.price_info.get()?.price.get()?;
    let per_second = price.trade_price.0.or(price.original_price.0).filter(|price| *price > 0.0)?;
    Some(Price { per_hour: per_second * SECONDS_PER_HOUR, currency: price.currency.owned()? })
}

/// The number of CPUs.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
pub(crate) fn cpus(amount: Quantity) -> f64 {
    amount.to_milli() as f64 / 1000.0
}

/// The number of GiB.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
pub(crate) fn gibibytes(amount: Quantity) -> f64 {
    amount.to_units() as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn size() -> Size {
        Size { cpu: Quantity::units(2), memory: Quantity::bytes(4 << 30), instance_type: None }
    }

    #[test]
    fn the_configuration_has_prices_for_cpus_and_memory() {
        let list = PriceList { cpu_hour: 0.049, memory_gib_hour: 0.0061, currency: "USD".to_owned() };
        assert_eq!(of_list(&list, &size()).to_string(), "0.1224 USD");
    }

    #[test]
    fn the_service_names_the_price_of_a_second() {
        let answer = json!({"PriceInfo": {"Price": {"Currency": "CNY", "TradePrice": 0.000_122_5, "OriginalPrice": "1"}}});
        let answer: GroupPrice = serde_json::from_value(answer).unwrap();
        assert_eq!(of_answer(&answer).unwrap().to_string(), "0.4410 CNY");
        for none in
            [json!({}), json!({"PriceInfo": {"Price": {"TradePrice": 1.0}}}), json!({"PriceInfo": null})]
        {
            assert_eq!(of_answer(&serde_json::from_value(none).unwrap()), None);
        }
        let asked = question(&size());
        assert_eq!((asked.get("Cpu"), asked.get("Memory")), (Some("2.0"), Some("4.0")));
    }
}
