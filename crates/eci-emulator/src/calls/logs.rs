//! DescribeContainerLog.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::id;
use crate::{
    cloud::{Cloud, LogLine},
    error::{ApiError, Result},
};

const DEFAULT_LINES: i64 = 500;
const MAX_LINES: i64 = 2000;
const MAX_BYTES: i64 = 1 << 20;

pub(super) fn log(cloud: &Cloud, request: &Value) -> Result<Value> {
    let (_, group) = cloud.find(id(request))?;
    let name = request["ContainerName"].as_str().unwrap_or_default();
    let (_, container) = group.container(name).ok_or_else(|| {
        let message = format!("The container {name} does not exist.");
        ApiError::new(404, "ContainerName.NotFound", message)
    })?;
    let bounded = |parameter: &str, default: i64, most: i64| match request[parameter].as_i64() {
        None => Ok(default),
        Some(value) if (1..=most).contains(&value) => Ok(value),
        Some(_) => Err(ApiError::invalid(parameter, format!("{parameter} must be from 1 to {most}."))),
    };
    let tail = usize::try_from(bounded("Tail", DEFAULT_LINES, MAX_LINES)?).unwrap_or(0);
    let limit = usize::try_from(bounded("LimitBytes", MAX_BYTES, MAX_BYTES)?).unwrap_or(0);
    let now = cloud.now();
    let from = match (request["SinceSeconds"].as_i64(), request["StartTime"].as_str()) {
        (Some(seconds), _) if seconds < 1 => {
            return Err(ApiError::invalid("SinceSeconds", "SinceSeconds must be positive."));
        }
        (Some(seconds), _) => now - SignedDuration::from_secs(seconds),
        (None, Some(text)) => text
            .parse()
            .map_err(|_| ApiError::invalid("StartTime", "StartTime must be a time of RFC 3339."))?,
        (None, None) => Timestamp::MIN,
    };
    let lines = if request["LastTime"] == true {
        if container.restarts == 0 {
            let message = format!("previous terminated container {name} not found");
            return Err(ApiError::new(400, "InvalidParameter.LastTime", message));
        }
        // Between two starts, the log of the container is that of its last run.
        if container.is_running() { &container.previous_log } else { &container.log }
    } else {
        &container.log
    };
    let shown: Vec<&LogLine> = lines.iter().filter(|line| line.at <= now && line.at >= from).collect();
    let mut content = String::new();
    for line in &shown[shown.len().saturating_sub(tail)..] {
        if request["Timestamps"] == true {
            content.push_str(&line.at.strftime("%Y-%m-%dT%H:%M:%S.%9fZ ").to_string());
        }
        content.push_str(&line.text);
        content.push('\n');
    }
    let mut end = content.len().min(limit);
    while !content.is_char_boundary(end) {
        end -= 1;
    }
    content.truncate(end);
    Ok(json!({"ContainerName": name, "Content": content}))
}
