//! DescribeContainerGroupEvents.

use serde_json::{Value, json};

use super::{Call, is_listed, page::Page, since, time};
use crate::{
    cloud::{Cloud, Event, Group},
    error::{ApiError, Result},
    limits,
};

const PAGE: usize = 200;

pub(super) fn events(cloud: &Cloud, call: &Call<'_>) -> Result<Value> {
    let ids = limits::ids(call.request)?;
    let now = cloud.now();
    let since = since(call.request, now);
    let source = call.request["EventSource"].as_str();
    if source.is_some_and(|source| !["EciService", "K8sAgent"].contains(&source)) {
        return Err(ApiError::invalid("EventSource", "The source must be EciService or K8sAgent."));
    }
    let is_asked_for = |event: &Event| {
        since.is_none_or(|since| event.last >= since)
            && source.is_none_or(|source| (source == "K8sAgent") == event.is_of_agent)
    };
    let page = Page::of(cloud, call.action, call.request, PAGE, |group| {
        is_listed(group, call, ids.as_deref(), now) && group.events.iter().any(is_asked_for)
    })?;
    let groups = page.numbers.iter().filter_map(|number| cloud.group(*number));
    let data: Vec<Value> = groups
        .map(|group| {
            let events = group.events.iter().filter(|event| is_asked_for(event));
            json!({
                "Annotations": "{}",
                "ContainerGroupId": group.id,
                "Name": group.name(),
                "Namespace": "default",
                "uuid": group.uuid,
                "Events": events.map(|event| describe(group, event)).collect::<Vec<_>>(),
            })
        })
        .collect();
    // The vendor's model of the answer has no token for a next page: pages beyond the first cannot be had.
    Ok(json!({"Data": data, "TotalCount": page.total}))
}

fn describe(group: &Group, event: &Event) -> Value {
    let component = if event.is_of_agent { "kubelet" } else { "EciService" };
    json!({
        "Count": event.count,
        "FirstTimestamp": time(event.first),
        "LastTimestamp": time(event.last),
        "Message": event.message,
        "Metadata": {"Name": event.name, "Namespace": "default"},
        "Reason": event.reason,
        "ReportingComponent": component,
        "ReportingInstance": group.id,
        "Source": {"Component": component, "Host": "eci"},
        "Type": if event.is_warning { "Warning" } else { "Normal" },
        "involvedObject": {
            "ApiVersion": "v1", "Kind": "Pod", "Name": group.name(), "Namespace": "default", "Uid": group.uuid,
        },
    })
}
