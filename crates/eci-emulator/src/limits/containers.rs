//! Limits of containers.

use serde_json::Value;

use super::{count, exceeded, length, list, one_of, range, text};
use crate::error::{ApiError, Result};

const FIELD_PATH: &str = "status.podIP";

pub(super) fn check(request: &Value) -> Result<()> {
    let mut names: Vec<&str> = Vec::new();
    for container in list(request, "InitContainer").chain(list(request, "Container")) {
        let name = text(container, "Name");
        if name.is_empty() {
            return Err(ApiError::missing("Container.Name"));
        }
        let is_valid = name.len() <= 63
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !is_valid {
            return Err(ApiError::invalid("ContainerName", format!("The container name {name} is invalid.")));
        }
        if names.contains(&name) {
            let message = format!("The container name {name} is duplicated.");
            return Err(ApiError::invalid("DuplicatedName", message));
        }
        names.push(name);
        container_limits(request, container)?;
    }
    Ok(())
}

fn container_limits(request: &Value, container: &Value) -> Result<()> {
    count(container, "Arg", 10)?;
    count(container, "Command", 20)?;
    count(container, "EnvironmentVar", 100)?;
    count(container, "Port", 100)?;
    count(container, "VolumeMount", 16)?;
    one_of(container, "ImagePullPolicy", &["Always", "IfNotPresent", "Never"])?;
    range(container, "Gpu", 0, 16)?;
    for name in ["Cpu", "Memory"] {
        if container[name].as_f64().is_some_and(|value| value < 0.0) {
            return Err(ApiError::invalid("CPU.Memory", format!("{name} must not be negative.")));
        }
    }
    for variable in list(container, "EnvironmentVar") {
        environment(variable)?;
    }
    for port in list(container, "Port") {
        if port["Port"].is_null() {
            return Err(ApiError::missing("Container.Port.Port"));
        }
        range(port, "Port", 1, 65535)?;
        one_of(port, "Protocol", &["TCP", "UDP"])?;
    }
    for probe in ["LivenessProbe", "ReadinessProbe"] {
        if container[probe].is_object() {
            self::probe(probe, &container[probe])?;
        }
    }
    let mut paths: Vec<&str> = Vec::new();
    for mount in list(container, "VolumeMount") {
        let (volume, path) = (text(mount, "Name"), text(mount, "MountPath"));
        if volume.is_empty() || path.is_empty() {
            return Err(ApiError::missing("Container.VolumeMount"));
        }
        if !list(request, "Volume").any(|other| other["Name"] == volume) && request["UpdateType"].is_null() {
            let message = format!("The mounted volume {volume} is not in the container group.");
            return Err(ApiError::invalid("VolumeMount", message));
        }
        if paths.contains(&path) {
            return Err(ApiError::invalid("DuplicatedMountPath", format!("{path} is mounted twice.")));
        }
        paths.push(path);
        one_of(mount, "MountPropagation", &["None", "HostToContainer", "Bidirectional"])?;
    }
    Ok(())
}

fn environment(variable: &Value) -> Result<()> {
    let (key, value) = (text(variable, "Key"), text(variable, "Value"));
    let is_valid = (1..=128).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !key.starts_with(|first: char| first.is_ascii_digit());
    if !is_valid {
        let message = format!("The name of the environment variable {key} is invalid.");
        return Err(ApiError::invalid("EnvironmentVar.Key", message));
    }
    if value.chars().count() > 256 {
        return Err(length(&format!("The value of the environment variable {key}"), 256));
    }
    let reference = &variable["FieldRef"]["FieldPath"];
    if let Some(path) = reference.as_str() {
        if path != FIELD_PATH {
            return Err(ApiError::invalid("FieldPath", format!("The field path {path} is not supported.")));
        }
        if !value.is_empty() {
            return Err(ApiError::invalid("EnvironmentVar", format!("{key} has a value and a reference.")));
        }
    }
    Ok(())
}

fn probe(name: &str, probe: &Value) -> Result<()> {
    let handlers = ["Exec", "HttpGet", "TcpSocket"].iter().filter(|each| probe[**each].is_object());
    if handlers.count() != 1 {
        return Err(ApiError::invalid(name, format!("{name} must have one of HttpGet, Exec and TcpSocket.")));
    }
    for (field, least) in [
        ("InitialDelaySeconds", 0),
        ("PeriodSeconds", 1),
        ("TimeoutSeconds", 1),
        ("SuccessThreshold", 1),
        ("FailureThreshold", 1),
    ] {
        range(probe, field, least, i64::MAX)?;
    }
    if name == "LivenessProbe" {
        range(probe, "SuccessThreshold", 1, 1)?;
    }
    for handler in ["HttpGet", "TcpSocket"] {
        if probe[handler].is_object() {
            if probe[handler]["Port"].is_null() {
                return Err(ApiError::missing(&format!("{name}.{handler}.Port")));
            }
            range(&probe[handler], "Port", 1, 65535)?;
            one_of(&probe[handler], "Scheme", &["HTTP", "HTTPS"])?;
        }
    }
    if list(&probe["Exec"], "Command").count() > 20 {
        return Err(exceeded("Exec.Command", 20));
    }
    Ok(())
}
