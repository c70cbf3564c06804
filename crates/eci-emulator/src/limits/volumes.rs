//! Limits of volumes and files.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::{length, list, text};
use crate::error::{ApiError, Result};

const MAX_FILE: usize = 32 << 10;
const MAX_FILES: usize = 60 << 10;

const TYPES: [&str; 6] =
    ["ConfigFileVolume", "DiskVolume", "EmptyDirVolume", "FlexVolume", "HostPathVolume", "NFSVolume"];

pub(super) fn check(request: &Value) -> Result<()> {
    let (mut names, mut total): (Vec<&str>, usize) = (Vec::new(), 0);
    for volume in list(request, "Volume") {
        let (name, kind) = (text(volume, "Name"), text(volume, "Type"));
        if name.is_empty() || kind.is_empty() {
            return Err(ApiError::missing("Volume"));
        }
        if names.contains(&name) {
            let message = format!("The volume name {name} is duplicated.");
            return Err(ApiError::invalid("DuplicatedVolumeName", message));
        }
        names.push(name);
        if !TYPES.contains(&kind) {
            return Err(ApiError::invalid(
                "VolumeType",
                format!("The type {kind} of {name} is not supported."),
            ));
        }
        let others = TYPES.iter().filter(|other| **other != kind && volume[**other].is_object());
        if let Some(other) = others.into_iter().next() {
            return Err(ApiError::invalid("Volume", format!("{name} is a {kind} and has a {other}.")));
        }
        match kind {
            "HostPathVolume" => {
                let message = "Only users in the whitelist can mount HostPath volumes.";
                return Err(ApiError::new(403, "Forbidden.HostPath", message));
            }
            "NFSVolume"
                if text(&volume[kind], "Server").is_empty() || text(&volume[kind], "Path").is_empty() =>
            {
                return Err(ApiError::missing("Volume.NFSVolume"));
            }
            "DiskVolume"
                if text(&volume[kind], "DiskId").is_empty() && volume[kind]["DiskSize"].is_null() =>
            {
                return Err(ApiError::missing("Volume.DiskVolume"));
            }
            "FlexVolume" if text(&volume[kind], "Driver").is_empty() => {
                return Err(ApiError::missing("Volume.FlexVolume"));
            }
            "EmptyDirVolume" => {
                let medium = text(&volume[kind], "Medium");
                if !["", "Memory", "LocalRaid0"].contains(&medium) {
                    return Err(ApiError::invalid(
                        "Medium",
                        format!("The medium {medium} is not supported."),
                    ));
                }
            }
            "ConfigFileVolume" => total += files(name, &volume[kind])?,
            _ => {}
        }
    }
    if total > MAX_FILES {
        return Err(ApiError::invalid(
            "ConfigFileVolume",
            format!("All files have {total} bytes: at most {MAX_FILES}."),
        ));
    }
    Ok(())
}

fn files(volume: &str, files: &Value) -> Result<usize> {
    let mut total = 0;
    mode(&files["DefaultMode"])?;
    let mut paths: Vec<&str> = Vec::new();
    for file in list(files, "ConfigFileToPath") {
        let path = text(file, "Path");
        mode(&file["Mode"])?;
        if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(ApiError::invalid("Path", format!("The path {path} of {volume} is invalid.")));
        }
        if paths.contains(&path) {
            return Err(ApiError::invalid("Path", format!("The path {path} of {volume} is duplicated.")));
        }
        paths.push(path);
        let content = BASE64_STANDARD.decode(text(file, "Content")).map_err(|_| {
            ApiError::invalid("Content", format!("The content of {path} of {volume} is not valid base64."))
        })?;
        if content.len() > MAX_FILE {
            return Err(length(&format!("The content of {path} of {volume}"), MAX_FILE));
        }
        total += content.len();
    }
    Ok(total)
}

/// Modes are octal digits.
fn mode(mode: &Value) -> Result<()> {
    match mode.as_i64() {
        Some(digits) if octal(digits).is_none() => {
            Err(ApiError::invalid("Mode", format!("The mode {digits} must have four octal digits.")))
        }
        _ => Ok(()),
    }
}

/// The mode that these digits spell.
pub(crate) fn octal(digits: i64) -> Option<u32> {
    u32::from_str_radix(&digits.to_string(), 8).ok().filter(|mode| *mode <= 0o7777)
}
