//! Tags of groups that exist.

use serde_json::{Value, json};

use crate::{
    cloud::Cloud,
    error::{ApiError, Result},
    limits,
};

const MAX_TAGS: usize = 20;

/// The groups that the request names.
fn resources(cloud: &Cloud, request: &Value) -> Result<Vec<u64>> {
    let kind = request["ResourceType"].as_str().unwrap_or_default();
    if !kind.eq_ignore_ascii_case("containergroup") {
        return Err(ApiError::invalid("ResourceType", format!("The resource type {kind} is not supported.")));
    }
    let ids = request["ResourceId"].as_array().into_iter().flatten().filter_map(Value::as_str);
    ids.map(|id| Ok(cloud.find(id)?.0)).collect()
}

pub(super) fn tag(cloud: &mut Cloud, request: &Value) -> Result<Value> {
    limits::tags(&request["Tag"])?;
    for number in resources(cloud, request)? {
        let Some(group) = cloud.group_mut(number) else { continue };
        for tag in request["Tag"].as_array().into_iter().flatten() {
            let text = |name: &str| tag[name].as_str().unwrap_or_default().to_owned();
            group.tags.retain(|(key, _)| *key != text("Key"));
            group.tags.push((text("Key"), text("Value")));
        }
        if group.tags.len() > MAX_TAGS {
            group.tags.truncate(MAX_TAGS);
            let message = format!("A container group has at most {MAX_TAGS} tags.");
            return Err(ApiError::invalid("LimitExceeded", message));
        }
    }
    Ok(json!({}))
}

pub(super) fn untag(cloud: &mut Cloud, request: &Value) -> Result<Value> {
    for number in resources(cloud, request)? {
        let Some(group) = cloud.group_mut(number) else { continue };
        let mut keys =
            request["TagKey"].as_array().into_iter().flatten().filter_map(Value::as_str).peekable();
        if keys.peek().is_none() && request["All"] == true {
            group.tags.clear();
        }
        for key in keys {
            group.tags.retain(|(other, _)| other != key);
        }
    }
    Ok(json!({}))
}

pub(super) fn list(cloud: &Cloud, request: &Value) -> Result<Value> {
    let named = resources(cloud, request)?;
    let wanted = |key: &str, value: &str| {
        let mut tags = request["Tag"].as_array().into_iter().flatten().peekable();
        tags.peek().is_none()
            || tags.any(|tag| tag["Key"] == key && tag["Value"].as_str().is_none_or(|wanted| wanted == value))
    };
    let mut found = Vec::new();
    for (_, group) in cloud
        .groups()
        .filter(|(number, group)| !group.is_gone && (named.is_empty() || named.contains(number)))
    {
        for (key, value) in group.tags.iter().filter(|(key, value)| wanted(key, value)) {
            found.push(json!({
                "ResourceId": group.id, "ResourceType": "containergroup", "TagKey": key, "TagValue": value,
            }));
        }
    }
    Ok(json!({"TagResources": found, "NextToken": ""}))
}
