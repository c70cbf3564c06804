//! What goes over the socket: one JSON object a line, in both directions.

use k8s_openapi::api::core::v1::PodStatus;
use serde::{Deserialize, Serialize};
use vk_provider::{Error, PodRef, Result};

use crate::{
    fault,
    simulator::{Reply, Request},
};

/// From a mock to the process that has its pods.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClientMessage {
    /// Answered by a [`ServerMessage::Answer`] with the same id. Any number may be under way.
    Ask { id: u64, request: Request },
    /// Asks for a [`ServerMessage::Change`] for each change of the node's pods from now on.
    Subscribe { node: String },
}

/// From the process that has the pods.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ServerMessage {
    /// The answer to a request.
    Answer { id: u64, answer: Response },
    /// A pod changed; without a status it is gone.
    Change { pod: PodRef, status: Option<Box<PodStatus>> },
}

/// How a request ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Response {
    Ok(Reply),
    Failed { kind: String, message: String },
}

// === impl Response ===

impl From<Result<Reply>> for Response {
    fn from(result: Result<Reply>) -> Self {
        match result {
            Ok(reply) => Self::Ok(reply),
            Err(error) => Self::Failed { kind: error.kind().name().to_owned(), message: error.report() },
        }
    }
}

impl From<Response> for Result<Reply> {
    fn from(answer: Response) -> Self {
        match answer {
            Response::Ok(reply) => Ok(reply),
            Response::Failed { kind, message } => match fault::parse_kind(&kind) {
                Ok(kind) => Err(Error::new(kind, message)),
                Err(_) => Err(Error::internal(message)),
            },
        }
    }
}

/// The line of a message.
pub(crate) fn line(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)
        .map_err(|error| Error::internal("encode a message for the mock's backend").caused_by(error))?;
    line.push(b'\n');
    Ok(line)
}
