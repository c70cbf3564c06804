//! The calls of the API, from a checked request to the body of an answer.

mod describe;
mod describe_status;
mod events;
mod logs;
mod metrics;
mod page;
mod region;
mod tags;
mod usage;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub(crate) use self::metrics::metrics;
use crate::{
    cloud::{Cloud, Group},
    error::{ApiError, Result},
    limits,
};

/// Who asks, and for what.
pub(crate) struct Call<'a> {
    pub(crate) action: &'a str,
    pub(crate) request: &'a Value,
    /// Whether the caller may see groups. Otherwise lists are empty.
    pub(crate) may_list: bool,
}

/// Carries out a call that needs nothing but the state of the cloud.
pub(crate) fn carry_out(cloud: &mut Cloud, call: &Call<'_>) -> Result<Value> {
    let request = call.request;
    let region = request["RegionId"].as_str();
    if region.is_some_and(|region| region != cloud.settings.region) && call.action != "DescribeRegions" {
        return Err(ApiError::new(404, "InvalidRegionId.NotFound", "The specified region does not exist."));
    }
    match call.action {
        "CreateContainerGroup" => create(cloud, request),
        "DeleteContainerGroup" => once(cloud, call, |cloud| cloud.delete(id(request))),
        "RestartContainerGroup" => once(cloud, call, |cloud| cloud.restart_group(id(request))),
        "UpdateContainerGroup" => {
            limits::check_group(request, false)?;
            once(cloud, call, |cloud| cloud.update(request))
        }
        "DescribeContainerGroups" => describe::groups(cloud, call),
        "DescribeContainerGroupStatus" => describe_status::status(cloud, call),
        "DescribeContainerGroupEvents" => events::events(cloud, call),
        "DescribeContainerLog" => logs::log(cloud, request),
        "DescribeContainerGroupPrice" => usage::price(cloud, request),
        "ListUsage" => Ok(usage::quota(cloud)),
        "DescribeRegions" => Ok(region::regions(cloud)),
        "DescribeAvailableResource" => region::available(cloud, request),
        "TagResources" => tags::tag(cloud, request),
        "UntagResources" => tags::untag(cloud, request),
        "ListTagResources" => tags::list(cloud, request),
        other => Err(ApiError::new(404, "InvalidAction.NotFound", format!("There is no action {other}."))),
    }
}

fn create(cloud: &mut Cloud, request: &Value) -> Result<Value> {
    limits::check_group(request, true)?;
    if let Some(list) = request["SecurityGroupId"].as_str() {
        for name in list.split(',').map(str::trim) {
            if !cloud.settings.security_groups.contains(name) {
                let message = format!("The specified security group {name} does not exist.");
                return Err(ApiError::new(404, "InvalidSecurityGroupId.NotFound", message));
            }
        }
    }
    if let Some(answer) = cloud.answered("CreateContainerGroup", request)? {
        return Ok(answer);
    }
    let id = cloud.create(request)?;
    let answer = json!({"ContainerGroupId": id});
    cloud.remember("CreateContainerGroup", request, &answer);
    Ok(answer)
}

/// A call that is carried out once for each client token, and answers nothing.
fn once(cloud: &mut Cloud, call: &Call<'_>, act: impl FnOnce(&mut Cloud) -> Result<()>) -> Result<Value> {
    limits::client_token(call.request)?;
    if let Some(answer) = cloud.answered(call.action, call.request)? {
        return Ok(answer);
    }
    act(cloud)?;
    let answer = json!({});
    cloud.remember(call.action, call.request, &answer);
    Ok(answer)
}

fn id(request: &Value) -> &str {
    request["ContainerGroupId"].as_str().unwrap_or_default()
}

/// Whether a list with these filters shows the group.
fn is_listed(group: &Group, call: &Call<'_>, ids: Option<&[String]>, now: Timestamp) -> bool {
    let request = call.request;
    let is = |name: &str, value: &str| request[name].as_str().is_none_or(|wanted| wanted == value);
    let has_tags = request["Tag"].as_array().into_iter().flatten().all(|tag| {
        group.tags.iter().any(|(key, value)| {
            tag["Key"] == key.as_str() && tag["Value"].as_str().is_none_or(|wanted| wanted == value)
        })
    });
    let default_group = group.spec["ResourceGroupId"].as_str().unwrap_or("rg-default");
    call.may_list
        && (now >= group.listed_from || ids.is_some())
        && (!group.is_gone || ids.is_none())
        && ids.is_none_or(|ids| ids.contains(&group.id))
        && has_tags
        && is("ContainerGroupName", group.name())
        && is("Status", group.status.name())
        && is("VSwitchId", &group.v_switch)
        && is("ZoneId", &group.zone)
        && is("SecurityGroupId", group.spec["SecurityGroupId"].as_str().unwrap_or_default())
        && is("ResourceGroupId", default_group)
        && is("ComputeCategory", "general")
}

/// The time that `SinceSecond` means.
fn since(request: &Value, now: Timestamp) -> Option<Timestamp> {
    request["SinceSecond"].as_i64().map(|seconds| now - SignedDuration::from_secs(seconds.max(0)))
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Removes what is not set.
fn compact(mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    object
}
