//! Quota and prices.

use serde_json::{Value, json};

use crate::{
    cloud::{Cloud, Size, grid, per_second, price_of},
    error::Result,
};

pub(super) fn quota(cloud: &Cloud) -> Value {
    json!({"Attributes": {
        "UsedCpu": cloud.used_cpu(),
        "MaxCpu": cloud.settings.max_cpu,
        "UsedImageCache": 0,
        "MaxImageCache": 50,
        "UsedDataCache": 0,
        "MaxDataCache": 50,
    }})
}

pub(super) fn price(cloud: &Cloud, request: &Value) -> Result<Value> {
    let settings = &cloud.settings;
    let number = |name: &str| request[name].as_f64().unwrap_or(0.0);
    let instance_type = request["InstanceType"].as_str();
    let size = match instance_type {
        Some(name) => Size::of_type(name)?,
        None => grid(number("Cpu"), number("Memory"))?,
    };
    let is_spot = request["SpotStrategy"].as_str().is_some_and(|strategy| strategy != "NoSpot");
    let (full, price) = (price_of(settings, size, false), price_of(settings, size, is_spot));
    let detail = |resource: &str, price: f64| {
        json!({
            "Resource": resource, "OriginalPrice": price, "DiscountPrice": 0.0, "TradePrice": price,
            "Rules": {"Rule": []},
        })
    };
    let spot: Vec<Value> = settings
        .v_switches
        .values()
        .filter(|_| is_spot)
        .map(|zone| {
            json!({
                "InstanceType": instance_type.unwrap_or_default(), "ZoneId": zone,
                "OriginPrice": full, "SpotPrice": price,
            })
        })
        .collect();
    Ok(json!({"PriceInfo": {
        "Price": {
            "Currency": settings.currency,
            "OriginalPrice": full,
            "DiscountPrice": ((full - price) * 1e9).round() / 1e9,
            "TradePrice": price,
            "DetailInfos": {"DetailInfo": [
                detail("cpu", per_second(size.cpu * settings.cpu_hour)), detail("memory", per_second(size.memory * settings.memory_hour)),
            ]},
        },
        "Rules": {"Rule": []},
        "SpotPrices": {"SpotPrice": spot},
    }}))
}
