//! The error stream: a JSON `Status` from version 4 on, and before that an error text.

use serde::{Deserialize, Serialize};
use vk_provider::{Error, Result, ability::Exit};

use super::ProtocolVersion;

const SUCCESS: &str = "Success";
const FAILURE: &str = "Failure";
const NON_ZERO: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandStatus {
    /// Exit code 0.
    Success,
    /// Another exit code.
    Exit(i32),
    /// It could not be run, or not to the end.
    Failure(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct StatusJson {
    #[serde(default)]
    metadata: MetadataJson,
    #[serde(default)]
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<DetailsJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct MetadataJson {}

#[derive(Debug, Default, Serialize, Deserialize)]
struct DetailsJson {
    #[serde(default)]
    causes: Vec<CauseJson>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct CauseJson {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default)]
    message: String,
}

impl CommandStatus {
    /// The bytes for the error stream.
    pub(crate) fn encode(&self, version: ProtocolVersion) -> Vec<u8> {
        if version < ProtocolVersion::V4 {
            return self.text().into_bytes();
        }
        let mut json =
            StatusJson { status: FAILURE.to_owned(), message: self.text(), ..StatusJson::default() };
        match self {
            Self::Success => SUCCESS.clone_into(&mut json.status),
            Self::Exit(code) => {
                NON_ZERO.clone_into(&mut json.reason);
                let cause = CauseJson { reason: EXIT_CODE.to_owned(), message: to_byte(*code).to_string() };
                json.details = Some(DetailsJson { causes: vec![cause] });
            }
            Self::Failure(why) => {
                "InternalError".clone_into(&mut json.reason);
                json.code = Some(500);
                let cause = CauseJson { message: why.clone(), ..CauseJson::default() };
                json.details = Some(DetailsJson { causes: vec![cause] });
            }
        }
        // Serializing strings cannot fail.
        serde_json::to_vec(&json).unwrap_or_default()
    }

    fn text(&self) -> String {
        match self {
            Self::Success => String::new(),
            Self::Exit(code) => format!("command terminated with non-zero exit code: {code}"),
            Self::Failure(why) => format!("Internal error occurred: {why}"),
        }
    }

    /// Parses the content of the error stream.
    pub(crate) fn decode(text: &[u8], version: ProtocolVersion) -> Result<Exit> {
        // In every version, no content means no failure.
        if text.is_empty() {
            return Ok(Exit { code: 0 });
        }
        let failed = |text: &str| Error::internal(format!("run the command: {text}"));
        if version < ProtocolVersion::V4 {
            return Err(failed(&String::from_utf8_lossy(text)));
        }
        let json: StatusJson = serde_json::from_slice(text).map_err(|error| {
            Error::internal("read the status on the error stream, which should be a Status in JSON")
                .caused_by(error)
        })?;
        if json.status == SUCCESS {
            return Ok(Exit { code: 0 });
        }
        if json.reason != NON_ZERO {
            return Err(failed(&json.message));
        }
        let causes = json.details.unwrap_or_default().causes;
        let code = causes.iter().find(|cause| cause.reason == EXIT_CODE).map(|cause| cause.message.parse());
        match code {
            Some(Ok(code)) => Ok(Exit { code }),
            _ => Err(failed("a Status with the reason NonZeroExitCode and no exit code")),
        }
    }
}

/// Clients parse the code as a byte and fail on anything else.
fn to_byte(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn text(status: &CommandStatus) -> Value {
        serde_json::from_slice(&status.encode(ProtocolVersion::V4)).unwrap()
    }

    #[test]
    fn statuses_look_as_a_kubelet_writes_them() {
        assert_eq!(text(&CommandStatus::Success), json!({"metadata": {}, "status": "Success"}));
        assert_eq!(
            text(&CommandStatus::Exit(137)),
            json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code: 137",
                "details": {"causes": [{"reason": "ExitCode", "message": "137"}]},
            })
        );
        assert_eq!(
            text(&CommandStatus::Failure("no such file".into())),
            json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": "Internal error occurred: no such file",
                "details": {"causes": [{"message": "no such file"}]},
            })
        );
    }

    #[test]
    fn before_version_4_only_failures_are_sent_as_text() {
        assert_eq!(CommandStatus::Success.encode(ProtocolVersion::V3), b"");
        assert_eq!(
            CommandStatus::Exit(1).encode(ProtocolVersion::V1),
            b"command terminated with non-zero exit code: 1"
        );
        assert_eq!(CommandStatus::decode(b"", ProtocolVersion::V2).unwrap(), Exit { code: 0 });
        assert_eq!(
            CommandStatus::decode(b"it broke", ProtocolVersion::V2).unwrap_err().report(),
            "run the command: it broke"
        );
    }

    #[test]
    fn a_code_that_does_not_fit_a_byte_becomes_255() {
        for code in [-1, 256, i32::MIN, i32::MAX] {
            let causes = &text(&CommandStatus::Exit(code))["details"]["causes"];
            assert_eq!(causes[0]["message"], "255", "{code}");
        }
    }

    #[test]
    fn an_invalid_status_is_an_error() {
        for nonsense in [&b"{"[..], b"[]", br#"{"status":"Failure","reason":"NonZeroExitCode"}"#] {
            assert!(!CommandStatus::decode(nonsense, ProtocolVersion::V4).unwrap_err().report().is_empty());
        }
    }

    proptest! {
        #[test]
        fn a_code_survives_the_way(code in 0_i32..256) {
            let status = if code == 0 { CommandStatus::Success } else { CommandStatus::Exit(code) };
            prop_assert_eq!(CommandStatus::decode(&status.encode(ProtocolVersion::V4), ProtocolVersion::V4).unwrap(), Exit { code });
        }

        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>) {
            let _ = CommandStatus::decode(&bytes, ProtocolVersion::V4);
            let _ = CommandStatus::decode(&bytes, ProtocolVersion::V1);
        }
    }
}
