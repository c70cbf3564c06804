//! The journal of requests and responses. Values that may be secret are masked by the vendor's names before they are kept.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

const MASK: &str = "***";
/// So many entries are kept in memory.
const MAX_ENTRIES: usize = 10_000;

/// Names whose values are masked: in requests, segments of paths; in responses, keys.
const SECRET: [&str; 17] = [
    "Arg",
    "Args",
    "Authorization",
    "Command",
    "Commands",
    "Content",
    "Execs",
    "HttpUrl",
    "LifecyclePostStartHandlerExec",
    "LifecyclePreStopHandlerExec",
    "FlexVolumeOptions",
    "Options",
    "Password",
    "SecurityToken",
    "SyncResponse",
    "UserName",
    "WebSocketUri",
];
/// Names of lists of pairs whose `Value` is masked.
const SECRET_PAIRS: [&str; 6] = [
    "EnvironmentVar",
    "EnvironmentVars",
    "LifecyclePostStartHandlerHttpGetHttpHeader",
    "LifecyclePostStartHandlerHttpGetHttpHeaders",
    "LifecyclePreStopHandlerHttpGetHttpHeader",
    "LifecyclePreStopHandlerHttpGetHttpHeaders",
];
/// Parameters of the signature are no part of the call.
const SIGNATURE: [&str; 11] = [
    "AccessKeyId",
    "Action",
    "Format",
    "SecurityToken",
    "Signature",
    "SignatureMethod",
    "SignatureNonce",
    "SignatureType",
    "SignatureVersion",
    "Timestamp",
    "Version",
];

pub(crate) struct Journal {
    file: Option<Mutex<File>>,
    entries: Mutex<Vec<Value>>,
}

// === impl Journal ===

impl Journal {
    /// A journal in memory, and in this file.
    pub(crate) fn new(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        Ok(Self { file: file.map(Mutex::new), entries: Mutex::default() })
    }

    /// Keeps a request and its response. `is_faulty` tells that a fault has changed the response.
    pub(crate) fn record(
        &self,
        action: &str,
        parameters: &[(String, String)],
        status: u16,
        response: &Value,
        is_faulty: bool,
    ) {
        let parameters: Map<String, Value> = parameters
            .iter()
            .filter(|(name, _)| !SIGNATURE.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), masked_parameter(name, value).into()))
            .collect();
        let entry = json!({
            "action": action,
            "parameters": parameters,
            "status": status,
            "response": masked(response, "", false),
            "faulty": is_faulty,
        });
        if let Some(file) = &self.file {
            let _ = writeln!(file.lock(), "{entry}");
        }
        let mut entries = self.entries.lock();
        if entries.len() == MAX_ENTRIES {
            entries.drain(..MAX_ENTRIES / 10);
        }
        entries.push(entry);
    }

    /// What was recorded, a JSON object for each call.
    pub(crate) fn entries(&self) -> Vec<Value> {
        self.entries.lock().clone()
    }
}

fn masked_parameter<'a>(path: &str, value: &'a str) -> &'a str {
    let is_secret = path.split('.').any(|part| SECRET.contains(&part))
        || path.ends_with(".Value") && path.split('.').any(|part| SECRET_PAIRS.contains(&part));
    if is_secret { MASK } else { value }
}

/// Masks texts. Their type stays, so that the shape can be judged.
fn masked(value: &Value, key: &str, is_pair: bool) -> Value {
    match value {
        Value::Object(map) => {
            let each = |(name, value): (&String, &Value)| {
                (name.clone(), masked(value, name, is_pair || SECRET_PAIRS.contains(&name.as_str())))
            };
            Value::Object(map.iter().map(each).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| masked(item, key, is_pair)).collect()),
        Value::String(text) if !text.is_empty() && (SECRET.contains(&key) || is_pair && key == "Value") => {
            MASK.into()
        }
        // An error repeats what was signed.
        Value::String(text) if key == "Message" && text.contains("string to sign") => MASK.into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_masked_before_it_is_kept() {
        let journal = Journal::new(None).unwrap();
        let parameters = [
            "Container.1.EnvironmentVar.1.Value",
            "InitContainer.1.Arg.2",
            "Container.1.Command.1",
            "Container.1.LivenessProbe.Exec.Command.1",
            "Container.1.LifecyclePreStopHandlerExec.1",
            "Container.1.LifecyclePostStartHandlerHttpGetHttpHeader.1.Value",
            "Volume.1.ConfigFileVolume.ConfigFileToPath.1.Content",
            "Volume.1.FlexVolume.Options",
            "ImageRegistryCredential.1.Password",
            "ImageRegistryCredential.1.UserName",
            "SecurityToken",
            "Command",
        ]
        .map(|name| (name.to_owned(), "hush".to_owned()));
        let response = json!({
            "Content": "hush",
            "WebSocketUri": "hush",
            "SyncResponse": "hush",
            "ContainerGroups": [{
                "Containers": [{"EnvironmentVars": [{"Key": "k", "Value": "hush"}], "Args": ["hush"]}],
                "Volumes": [{"ConfigFileVolumeConfigFileToPaths": [{"Content": "hush", "Path": "p"}]}],
                "Tags": [{"Key": "k", "Value": "shown"}],
            }],
        });
        journal.record("DescribeContainerGroups", &parameters, 200, &response, false);
        let text = journal.entries()[0].to_string();
        assert!(!text.contains("hush"), "{text}");
        assert!(text.contains("shown") && text.contains("\"Path\":\"p\""), "{text}");
    }
}
