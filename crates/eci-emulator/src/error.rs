//! Refusals, with the vendor's codes.

use serde_json::{Value, json};

/// A refusal of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// The vendor's code.
    pub code: String,
    /// What is wrong.
    pub message: String,
}

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

// === impl ApiError ===

impl ApiError {
    /// A refusal with this status, code and message.
    pub fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into() }
    }

    /// A parameter with a value that is not allowed.
    pub(crate) fn invalid(code: &str, message: impl Into<String>) -> Self {
        Self::new(400, format!("InvalidParameter.{code}"), message)
    }

    /// A mandatory parameter that is missing.
    pub(crate) fn missing(parameter: &str) -> Self {
        let top = parameter.split('.').next().unwrap_or(parameter);
        Self::new(400, format!("Missing{top}"), format!("{parameter} is mandatory for this action."))
    }

    /// A group that does not exist.
    pub(crate) fn no_group(id: &str) -> Self {
        Self::new(404, "ContainerGroup.NotFound", format!("The container group {id} does not exist."))
    }

    pub(crate) fn body(&self, request_id: &str, host: &str) -> Value {
        json!({
            "RequestId": request_id,
            "HostId": host,
            "Code": self.code,
            "Message": self.message,
            "Recommend": format!("https://api.aliyun.com/troubleshoot?q={}", self.code),
        })
    }
}
