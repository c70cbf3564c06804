//! What is said on the error stream: a `Status` in JSON from version 4 on, and before that a text when something failed.

use serde::{Deserialize, Serialize};
use vk_provider::{Error, Result, ability::Exit};

use super::Version;

const SUCCESS: &str = "Success";
const FAILURE: &str = "Failure";
const NON_ZERO: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// With code 0.
    Success,
    /// With another code.
    Exit(i32),
    /// It could not be run, or not to its end.
    Failure(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Metadata {}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Cause {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default)]
    message: String,
}

impl Status {
    /// What is written to the error stream.
    pub(crate) fn encode(&self, version: Version) -> Vec<u8> {
        if version < Version::V4 {
            return self.text().into_bytes();
        }
        let mut wire = Wire { status: FAILURE.to_owned(), message: self.text(), ..Wire::default() };
        match self {
            Self::Success => SUCCESS.clone_into(&mut wire.status),
            Self::Exit(code) => {
                NON_ZERO.clone_into(&mut wire.reason);
                let cause = Cause { reason: EXIT_CODE.to_owned(), message: shown(*code).to_string() };
                wire.details = Some(Details { causes: vec![cause] });
            }
            Self::Failure(why) => {
                "InternalError".clone_into(&mut wire.reason);
                wire.code = Some(500);
                let cause = Cause { message: why.clone(), ..Cause::default() };
                wire.details = Some(Details { causes: vec![cause] });
            }
        }
        // A struct of strings always has a JSON form.
        serde_json::to_vec(&wire).unwrap_or_default()
    }

    fn text(&self) -> String {
        match self {
            Self::Success => String::new(),
            Self::Exit(code) => format!("command terminated with non-zero exit code: {code}"),
            Self::Failure(why) => format!("Internal error occurred: {why}"),
        }
    }

    /// Reads what a server said until the end of the error stream.
    pub(crate) fn decode(said: &[u8], version: Version) -> Result<Exit> {
        // Nothing is no news of a failure, in every version.
        if said.is_empty() {
            return Ok(Exit { code: 0 });
        }
        let failed = |text: &str| Error::internal(format!("run the command: {text}"));
        if version < Version::V4 {
            return Err(failed(&String::from_utf8_lossy(said)));
        }
        let wire: Wire = serde_json::from_slice(said).map_err(|error| {
            Error::internal("read the status on the error stream, which should be a Status in JSON")
                .caused_by(error)
        })?;
        if wire.status == SUCCESS {
            return Ok(Exit { code: 0 });
        }
        if wire.reason != NON_ZERO {
            return Err(failed(&wire.message));
        }
        let causes = wire.details.unwrap_or_default().causes;
        let code = causes.iter().find(|cause| cause.reason == EXIT_CODE).map(|cause| cause.message.parse());
        match code {
            Some(Ok(code)) => Ok(Exit { code }),
            _ => Err(failed("a Status with the reason NonZeroExitCode that names no exit code")),
        }
    }
}

/// Clients read the code as a byte, and fail on anything else.
fn shown(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn said(status: &Status) -> Value {
        serde_json::from_slice(&status.encode(Version::V4)).unwrap()
    }

    #[test]
    fn statuses_look_as_a_kubelet_writes_them() {
        assert_eq!(said(&Status::Success), json!({"metadata": {}, "status": "Success"}));
        assert_eq!(
            said(&Status::Exit(137)),
            json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code: 137",
                "details": {"causes": [{"reason": "ExitCode", "message": "137"}]},
            })
        );
        assert_eq!(
            said(&Status::Failure("no such file".into())),
            json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": "Internal error occurred: no such file",
                "details": {"causes": [{"message": "no such file"}]},
            })
        );
    }

    #[test]
    fn before_version_4_only_a_failure_is_said_and_as_text() {
        assert_eq!(Status::Success.encode(Version::V3), b"");
        assert_eq!(Status::Exit(1).encode(Version::V1), b"command terminated with non-zero exit code: 1");
        assert_eq!(Status::decode(b"", Version::V2).unwrap(), Exit { code: 0 });
        assert_eq!(
            Status::decode(b"it broke", Version::V2).unwrap_err().report(),
            "run the command: it broke"
        );
    }

    #[test]
    fn a_code_that_is_no_byte_is_shown_as_one() {
        for code in [-1, 256, i32::MIN, i32::MAX] {
            let causes = &said(&Status::Exit(code))["details"]["causes"];
            assert_eq!(causes[0]["message"], "255", "{code}");
        }
    }

    #[test]
    fn a_status_that_makes_no_sense_is_an_error_that_says_so() {
        for nonsense in [&b"{"[..], b"[]", br#"{"status":"Failure","reason":"NonZeroExitCode"}"#] {
            assert!(!Status::decode(nonsense, Version::V4).unwrap_err().report().is_empty());
        }
    }

    proptest! {
        #[test]
        fn a_code_survives_the_way(code in 0_i32..256) {
            let status = if code == 0 { Status::Success } else { Status::Exit(code) };
            prop_assert_eq!(Status::decode(&status.encode(Version::V4), Version::V4).unwrap(), Exit { code });
        }

        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>) {
            let _ = Status::decode(&bytes, Version::V4);
            let _ = Status::decode(&bytes, Version::V1);
        }
    }
}
