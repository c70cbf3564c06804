//! Regions, zones, and what they have.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    cloud::{Cloud, Size},
    error::{ApiError, Result},
};

fn zones(cloud: &Cloud) -> BTreeSet<&str> {
    cloud.settings.v_switches.values().map(String::as_str).collect()
}

pub(super) fn regions(cloud: &Cloud) -> Value {
    let region = &cloud.settings.region;
    json!({"Regions": [{
        "RegionId": region,
        "RegionEndpoint": format!("eci.{region}.aliyuncs.com"),
        "Zones": zones(cloud),
        "RecommendZones": zones(cloud),
    }]})
}

pub(super) fn available(cloud: &Cloud, request: &Value) -> Result<Value> {
    let wanted = &request["DestinationResource"];
    let category = wanted["Category"].as_str().unwrap_or_default();
    if !["InstanceType", "InstanceTypeFamily"].contains(&category) {
        return Err(ApiError::invalid("DestinationResource.Category", "The category is not supported."));
    }
    let value = wanted["Value"].as_str().unwrap_or_default();
    if category == "InstanceType" {
        Size::of_type(value)?;
    }
    let settings = &cloud.settings;
    let in_zones =
        zones(cloud).into_iter().filter(|zone| request["ZoneId"].as_str().is_none_or(|id| id == *zone));
    let zones: Vec<Value> = in_zones
        .map(|zone| {
            let is_closed = settings.closed_zones.contains(zone);
            let has_none = settings.sold_out.contains(zone) || settings.sold_out.contains(value);
            let status = if is_closed || has_none { "WithoutStock" } else { "WithStock" };
            json!({
                "RegionId": settings.region,
                "ZoneId": zone,
                "AvailableResources": {"AvailableResource": [{
                    "Type": category,
                    "SupportedResources": {"SupportedResource": [{"StatusCategory": status, "Value": value}]},
                }]},
            })
        })
        .collect();
    Ok(json!({"AvailableZones": {"AvailableZone": zones}}))
}
