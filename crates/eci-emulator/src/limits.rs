//! What the vendor allows in a request: counts, lengths, names and values.

mod containers;
mod volumes;

use serde_json::Value;

pub(crate) use self::volumes::octal;
use crate::error::{ApiError, Result};

const MAX_CONTAINERS: usize = 20;
const MAX_VOLUMES: usize = 20;
const MAX_TAGS: usize = 20;
const MAX_V_SWITCHES: usize = 10;

/// Checks a CreateContainerGroup or UpdateContainerGroup.
pub(crate) fn check_group(request: &Value, is_create: bool) -> Result<()> {
    client_token(request)?;
    if is_create {
        group_name(request["ContainerGroupName"].as_str().unwrap_or_default())?;
    }
    count(request, "Container", MAX_CONTAINERS)?;
    count(request, "InitContainer", MAX_CONTAINERS)?;
    count(request, "Volume", MAX_VOLUMES)?;
    count(request, "HostAliase", 50)?;
    count(request, "ImageRegistryCredential", 10)?;
    tags(&request["Tag"])?;
    one_of(request, "RestartPolicy", &["Always", "OnFailure", "Never"])?;
    one_of(request, "DnsPolicy", &["None", "Default"])?;
    one_of(request, "SpotStrategy", &["NoSpot", "SpotWithPriceLimit", "SpotAsPriceGo"])?;
    one_of(request, "ScheduleStrategy", &["VSwitchOrdered", "VSwitchRandom"])?;
    one_of(request, "CpuArchitecture", &["AMD64", "ARM64"])?;
    one_of(request, "OsType", &["Linux", "Windows"])?;
    one_of(request, "UpdateType", &["RenewUpdate", "IncrementalUpdate"])?;
    one_of(request, "EipISP", &["BGP", "BGP_PRO"])?;
    range(request, "ActiveDeadlineSeconds", 1, i64::MAX)?;
    range(request, "TerminationGracePeriodSeconds", 0, i64::MAX)?;
    range(request, "Ipv6AddressCount", 0, 1)?;
    range(request, "SpotDuration", 0, 1)?;
    if request["SpotStrategy"] == "SpotWithPriceLimit" && request["SpotPriceLimit"].is_null() {
        return Err(ApiError::missing("SpotPriceLimit"));
    }
    if request["VSwitchId"].as_str().is_some_and(|list| list.split(',').count() > MAX_V_SWITCHES) {
        return Err(exceeded("VSwitchId", MAX_V_SWITCHES));
    }
    let dns = &request["DnsConfig"];
    count(dns, "NameServer", 3)?;
    count(dns, "Search", 32)?;
    if request["DnsPolicy"] == "None" && list(dns, "NameServer").next().is_none() && is_create {
        return Err(ApiError::missing("DnsConfig"));
    }
    for alias in list(request, "HostAliase") {
        let address = text(alias, "Ip");
        if address.parse::<std::net::IpAddr>().is_err() {
            return Err(ApiError::invalid("HostAliase", format!("{address} is no address.")));
        }
    }
    for credential in list(request, "ImageRegistryCredential") {
        for name in ["Server", "UserName", "Password"] {
            if text(credential, name).is_empty() {
                return Err(ApiError::missing(&format!("ImageRegistryCredential.{name}")));
            }
        }
    }
    volumes::check(request)?;
    containers::check(request)
}

/// Checks the tags of a request.
pub(crate) fn tags(tags: &Value) -> Result<()> {
    let list = tags.as_array().map_or(&[][..], Vec::as_slice);
    if list.len() > MAX_TAGS {
        return Err(exceeded("Tag", MAX_TAGS));
    }
    for (index, tag) in list.iter().enumerate() {
        let (key, value) = (text(tag, "Key"), text(tag, "Value"));
        let is_reserved = key.starts_with("acs:") || key.starts_with("aliyun") || value.starts_with("acs:");
        let has_url = [key, value].iter().any(|text| text.contains("http://") || text.contains("https://"));
        if key.is_empty() || key.chars().count() > 64 || value.chars().count() > 128 || is_reserved || has_url
        {
            return Err(ApiError::invalid("Tag", format!("The specified tag {key} is invalid.")));
        }
        if list[..index].iter().any(|other| text(other, "Key") == key) {
            return Err(ApiError::invalid("Tag", format!("The tag {key} is duplicated.")));
        }
    }
    Ok(())
}

/// Checks the token that makes a call idempotent.
pub(crate) fn client_token(request: &Value) -> Result<()> {
    let token = text(request, "ClientToken");
    if token.len() > 64 || !token.is_ascii() {
        return Err(ApiError::invalid(
            "ClientToken",
            "The client token must be ASCII of at most 64 characters.",
        ));
    }
    Ok(())
}

/// The ids of a parameter like `["eci-1","eci-2"]`.
pub(crate) fn ids(request: &Value) -> Result<Option<Vec<String>>> {
    let Some(text) = request["ContainerGroupIds"].as_str() else { return Ok(None) };
    let ids: Vec<String> = serde_json::from_str(text)
        .map_err(|_| ApiError::invalid("ContainerGroupIds", "The ids must be a JSON list of strings."))?;
    if ids.len() > 20 {
        return Err(exceeded("ContainerGroupIds", 20));
    }
    Ok(Some(ids))
}

/// The words of a command to execute.
pub(crate) fn command(request: &Value) -> Result<Vec<String>> {
    let command: Vec<String> = serde_json::from_str(text(request, "Command"))
        .map_err(|_| ApiError::invalid("Command", "The command must be a JSON list of strings."))?;
    if command.is_empty() || command.len() > 20 {
        return Err(exceeded("Command", 20));
    }
    if command.iter().any(|part| part.chars().count() > 256) {
        return Err(length("Command", 256));
    }
    Ok(command)
}

fn group_name(name: &str) -> Result<()> {
    let is_valid = (2..=128).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_valid {
        return Ok(());
    }
    Err(ApiError::invalid(
        "ContainerGroupName",
        "The name must have 2 to 128 lower-case letters, digits and hyphens, and none of these at its ends.",
    ))
}

fn list<'a>(parent: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    parent[name].as_array().into_iter().flatten()
}

fn text<'a>(parent: &'a Value, name: &str) -> &'a str {
    parent[name].as_str().unwrap_or_default()
}

fn count(parent: &Value, name: &str, most: usize) -> Result<()> {
    if list(parent, name).count() > most { Err(exceeded(name, most)) } else { Ok(()) }
}

fn exceeded(name: &str, most: usize) -> ApiError {
    ApiError::invalid("LimitExceeded", format!("{name} may have at most {most} items."))
}

fn length(name: &str, most: usize) -> ApiError {
    ApiError::invalid("LengthExceeded", format!("{name} may have at most {most} characters."))
}

fn one_of(parent: &Value, name: &str, allowed: &[&str]) -> Result<()> {
    match parent[name].as_str() {
        Some(value) if !allowed.contains(&value) => {
            Err(ApiError::invalid(name, format!("{name} must be one of {}.", allowed.join(", "))))
        }
        _ => Ok(()),
    }
}

fn range(parent: &Value, name: &str, least: i64, most: i64) -> Result<()> {
    match parent[name].as_i64() {
        Some(value) if !(least..=most).contains(&value) => {
            Err(ApiError::invalid(name, format!("{name} is out of range.")))
        }
        _ => Ok(()),
    }
}
