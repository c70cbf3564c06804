//! DescribeContainerGroups.

use serde_json::{Value, json};

use super::{Call, compact, is_listed, page::Page, time};
use crate::{
    cloud::{Cloud, Container, ContainerState, Group},
    error::Result,
    limits,
};

const PAGE: usize = 20;

pub(super) fn groups(cloud: &Cloud, call: &Call<'_>) -> Result<Value> {
    let ids = limits::ids(call.request)?;
    let now = cloud.now();
    let page = Page::of(cloud, call.action, call.request, PAGE, |group| {
        is_listed(group, call, ids.as_deref(), now)
    })?;
    let with_events = call.request["WithEvent"] != false;
    let groups: Vec<Value> = page
        .numbers
        .iter()
        .filter_map(|number| cloud.group(*number))
        .map(|group| describe(cloud, group, with_events))
        .collect();
    Ok(compact(
        json!({"ContainerGroups": groups, "NextToken": page.next.unwrap_or_default(), "TotalCount": page.total}),
    ))
}

fn describe(cloud: &Cloud, group: &Group, with_events: bool) -> Value {
    let spec = &group.spec;
    let ended = group.ended.map(time);
    let containers = |is_init| -> Vec<Value> {
        let of_kind = group.containers.iter().filter(|container| container.is_init == is_init);
        of_kind.map(container).collect()
    };
    let events: Vec<Value> = group
        .events
        .iter()
        .map(|event| {
            json!({
                "Count": event.count,
                "FirstTimestamp": time(event.first),
                "LastTimestamp": time(event.last),
                "Message": event.message,
                "Name": event.name,
                "Reason": event.reason,
                "Type": if event.is_warning { "Warning" } else { "Normal" },
            })
        })
        .collect();
    compact(json!({
        "ContainerGroupId": group.id,
        "ContainerGroupName": group.name(),
        "ComputeCategory": "general",
        "Containers": containers(false),
        "InitContainers": containers(true),
        "Cpu": group.size.cpu,
        "Memory": group.size.memory,
        "CreationTime": time(group.created),
        "Discount": 100,
        "DnsConfig": dns(spec),
        "EciSecurityContext": sysctls(spec),
        "EniInstanceId": group.ip.as_ref().map(|_| format!("eni-{}", &group.id[4..])),
        "EphemeralStorage": spec["EphemeralStorage"],
        "Events": with_events.then_some(events),
        "ExpiredTime": ended.clone().filter(|_| group.status.name() == "Expired"),
        "FailedTime": ended.clone().filter(|_| group.status.name().ends_with("Failed")),
        "SucceededTime": ended.filter(|_| group.status.name() == "Succeeded"),
        "HostAliases": aliases(spec),
        "InstanceType": group.instance_type,
        "InternetIp": group.internet_ip,
        "IntranetIp": group.ip,
        "Ipv6Address": group.ipv6,
        "RamRoleName": spec["RamRoleName"],
        "RegionId": cloud.settings.region,
        "ResourceGroupId": spec["ResourceGroupId"].as_str().unwrap_or("rg-default"),
        "RestartPolicy": group.restart_policy(),
        "SecurityGroupId": spec["SecurityGroupId"],
        "SpotPriceLimit": spec["SpotPriceLimit"],
        "SpotStrategy": spec["SpotStrategy"],
        "Status": group.status.name(),
        "Tags": group.tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect::<Vec<_>>(),
        "VSwitchId": group.v_switch,
        "Volumes": list(spec, "Volume").map(volume).collect::<Vec<_>>(),
        "VpcId": "vpc-1",
        "ZoneId": group.zone,
    }))
}

fn list<'a>(parent: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    parent[name].as_array().into_iter().flatten()
}

/// A list of the request under another name, or nothing.
fn array(parent: &Value, name: &str) -> Value {
    parent[name].as_array().map_or_else(|| json!([]), |items| Value::Array(items.clone()))
}

fn dns(spec: &Value) -> Value {
    let dns = &spec["DnsConfig"];
    if !dns.is_object() {
        return Value::Null;
    }
    json!({"NameServers": array(dns, "NameServer"), "Searches": array(dns, "Search"), "Options": array(dns, "Option")})
}

fn sysctls(spec: &Value) -> Value {
    let context = &spec["SecurityContext"];
    if context.is_object() { json!({"Sysctls": array(context, "Sysctl")}) } else { Value::Null }
}

fn aliases(spec: &Value) -> Value {
    let aliases = list(spec, "HostAliase")
        .map(|alias| json!({"Ip": alias["Ip"], "Hostnames": array(alias, "Hostname")}));
    Value::Array(aliases.collect())
}

fn volume(volume: &Value) -> Value {
    let text = |kind: &str, name: &str| volume[kind][name].clone();
    let files: Vec<Value> = list(&volume["ConfigFileVolume"], "ConfigFileToPath")
        .map(|file| compact(json!({"Content": file["Content"], "Path": file["Path"]})))
        .collect();
    compact(json!({
        "Name": volume["Name"],
        "Type": volume["Type"],
        "ConfigFileVolumeConfigFileToPaths": (!files.is_empty()).then_some(files),
        "DiskVolumeDiskId": text("DiskVolume", "DiskId"),
        "DiskVolumeFsType": text("DiskVolume", "FsType"),
        "EmptyDirVolumeMedium": text("EmptyDirVolume", "Medium"),
        "EmptyDirVolumeSizeLimit": text("EmptyDirVolume", "SizeLimit"),
        "FlexVolumeDriver": text("FlexVolume", "Driver"),
        "FlexVolumeFsType": text("FlexVolume", "FsType"),
        "FlexVolumeOptions": text("FlexVolume", "Options"),
        "NFSVolumePath": text("NFSVolume", "Path"),
        "NFSVolumeReadOnly": text("NFSVolume", "ReadOnly"),
        "NFSVolumeServer": text("NFSVolume", "Server"),
    }))
}

fn container(container: &Container) -> Value {
    let spec = &container.spec;
    let is_hidden = spec["EnvironmentVarHide"] == true;
    let variables: Vec<Value> = list(spec, "EnvironmentVar")
        .filter(|_| !is_hidden)
        .map(|variable| {
            let reference = &variable["FieldRef"]["FieldPath"];
            let from = reference.as_str().map(|path| json!({"FieldRef": {"FieldPath": path}}));
            compact(json!({"Key": variable["Key"], "Value": variable["Value"], "ValueFrom": from}))
        })
        .collect();
    let mut described = json!({
        "Name": container.name,
        "Image": spec["Image"],
        "ImagePullPolicy": spec["ImagePullPolicy"].as_str().unwrap_or("IfNotPresent"),
        "Args": array(spec, "Arg"),
        "Cpu": spec["Cpu"].as_f64().unwrap_or(0.0),
        "Memory": spec["Memory"].as_f64().unwrap_or(0.0),
        "Gpu": spec["Gpu"].as_i64().unwrap_or(0),
        "CurrentState": state(&container.state),
        "PreviousState": container.previous.as_ref().map(state),
        "EnvironmentVars": variables,
        "Ports": array(spec, "Port"),
        "Ready": container.is_ready,
        "RestartCount": container.restarts,
        "SecurityContext": security_context(&spec["SecurityContext"]),
        "WorkingDir": spec["WorkingDir"],
    });
    let mounts = list(spec, "VolumeMount").map(|mount| {
        let mut mount = mount.clone();
        mount["ReadOnly"] = (mount["ReadOnly"] == true).into();
        if container.is_init {
            // The vendor's model of init containers has no path in the volume.
            mount.as_object_mut().map(|map| map.remove("SubPath"));
        }
        mount
    });
    described["VolumeMounts"] = Value::Array(mounts.collect());
    // The vendor spells the command of an init container in another way.
    let command = if container.is_init { "Command" } else { "Commands" };
    described[command] = array(spec, "Command");
    if !container.is_init {
        described["LivenessProbe"] = probe(&spec["LivenessProbe"]);
        described["ReadinessProbe"] = probe(&spec["ReadinessProbe"]);
        for name in ["Stdin", "StdinOnce", "Tty"] {
            described[name] = (spec[name] == true).into();
        }
    }
    compact(described)
}

fn probe(probe: &Value) -> Value {
    if !probe.is_object() {
        return Value::Null;
    }
    let number = |name: &str, default: i64| probe[name].as_i64().unwrap_or(default);
    compact(json!({
        "Execs": array(&probe["Exec"], "Command"),
        "HttpGet": probe["HttpGet"],
        "TcpSocket": probe["TcpSocket"],
        "InitialDelaySeconds": number("InitialDelaySeconds", 0),
        "PeriodSeconds": number("PeriodSeconds", 10),
        "TimeoutSeconds": number("TimeoutSeconds", 1),
        "SuccessThreshold": number("SuccessThreshold", 1),
        "FailureThreshold": number("FailureThreshold", 3),
    }))
}

fn security_context(context: &Value) -> Value {
    if !context.is_object() {
        return Value::Null;
    }
    compact(json!({
        "Capability": context["Capability"].is_object().then(|| json!({"Adds": array(&context["Capability"], "Add")})),
        "ReadOnlyRootFilesystem": context["ReadOnlyRootFilesystem"],
        "RunAsUser": context["RunAsUser"],
    }))
}

fn state(state: &ContainerState) -> Value {
    match state {
        ContainerState::Waiting { reason, message } => {
            json!({"State": "Waiting", "DetailStatus": reason, "Reason": reason, "Message": message})
        }
        ContainerState::Running { started } => {
            json!({"State": "Running", "DetailStatus": "", "StartTime": time(*started)})
        }
        ContainerState::Terminated { started, finished, outcome } => json!({
            "State": "Terminated",
            "DetailStatus": outcome.reason,
            "Reason": outcome.reason,
            "Message": outcome.message,
            "ExitCode": outcome.code,
            "Signal": outcome.signal,
            "StartTime": time(*started),
            "FinishTime": time(*finished),
        }),
    }
}
