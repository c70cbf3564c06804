//! DescribeContainerGroupStatus: statuses as Kubernetes has them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Call, compact, is_listed, page::Page, since, time};
use crate::{
    cloud::{Cloud, Container, ContainerState, Group},
    error::Result,
    limits,
};

const PAGE: usize = 200;

pub(super) fn status(cloud: &Cloud, call: &Call<'_>) -> Result<Value> {
    let ids = limits::ids(call.request)?;
    let now = cloud.now();
    let since = since(call.request, now);
    let page = Page::of(cloud, call.action, call.request, PAGE, |group| {
        is_listed(group, call, ids.as_deref(), now) && since.is_none_or(|since| group.changed >= since)
    })?;
    let data: Vec<Value> =
        page.numbers.iter().filter_map(|number| cloud.group(*number)).map(describe).collect();
    Ok(json!({"Data": data, "NextToken": page.next.unwrap_or_default(), "TotalCount": page.total}))
}

fn describe(group: &Group) -> Value {
    let containers = group.containers.iter().filter(|container| !container.is_init);
    let statuses: Vec<Value> = containers.map(container_status).collect();
    let addresses: Vec<Value> =
        [&group.ip, &group.ipv6].into_iter().flatten().map(|ip| json!({"Ip": ip})).collect();
    let phase =
        if group.status.name() == "Terminating" { group.before.phase() } else { group.status.phase() };
    compact(json!({
        "Annotations": "{}",
        "ContainerGroupId": group.id,
        "Name": group.name(),
        "Namespace": "default",
        "uuid": group.uuid,
        "Status": group.status.name(),
        "PodStatus": compact(json!({
            "Phase": phase,
            "PodIp": group.ip,
            "PodIps": addresses,
            "HostIp": group.ip,
            "StartTime": group.started.map(time),
            "QosClass": "Guaranteed",
            "Conditions": conditions(group),
            "ContainerStatuses": statuses,
        })),
    }))
}

fn conditions(group: &Group) -> Vec<Value> {
    let mut main = group.containers.iter().filter(|container| !container.is_init);
    let is_ready = main.all(|container| container.is_ready);
    let mut init = group.containers.iter().filter(|container| container.is_init);
    let is_initialized = init.all(|container| container.exit_code() == Some(0));
    let is_scheduled = group.started.is_some();
    [
        ("Initialized", is_scheduled && is_initialized),
        ("Ready", is_scheduled && is_ready),
        ("ContainersReady", is_scheduled && is_ready),
        ("PodScheduled", is_scheduled),
    ]
    .map(|(kind, is_true)| {
        json!({
            "type": kind,
            "status": if is_true { "True" } else { "False" },
            "lastTransitionTime": time(group.changed),
        })
    })
    .into()
}

fn container_status(container: &Container) -> Value {
    let previous = container.previous.as_ref().map(state);
    compact(json!({
        "Name": container.name,
        "Image": container.spec["Image"],
        "ImageID": image_id(container),
        "LastState": previous,
        "State": state(&container.state),
        "Ready": container.is_ready,
        "RestartCount": container.restarts,
        "Started": container.is_running(),
    }))
}

fn image_id(container: &Container) -> String {
    let image = container.spec["Image"].as_str().unwrap_or_default();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, image.as_bytes());
    let hex = digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    format!("{}@sha256:{hex}", image.rsplit_once(':').map_or(image, |(name, _)| name))
}

fn state(state: &ContainerState) -> Value {
    match state {
        ContainerState::Waiting { reason, message } => {
            json!({"Waiting": {"Reason": reason, "Message": message}})
        }
        // The vendor's own spelling.
        ContainerState::Running { started } => json!({"Running": {"StartedAtstartedAt": time(*started)}}),
        ContainerState::Terminated { started, finished, outcome } => json!({"Terminated": {
            "ExitCode": outcome.code,
            "Signal": outcome.signal,
            "Reason": outcome.reason,
            "Message": outcome.message,
            "StartedAt": time(*started),
            "FinishedAt": time(*finished),
        }}),
    }
}
