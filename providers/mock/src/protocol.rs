//! The messages on the socket: one JSON object per line, in both directions.

use k8s_openapi::api::core::v1::PodStatus;
use serde::{Deserialize, Serialize};
use vk_provider::{Error, PodRef, Result};

use crate::{
    fault,
    simulator::{Reply, Request},
};

/// A message from a mock to the process that hosts its pods.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClientMessage {
    /// A request. The response is a [`ServerMessage::Answer`] with the same id. Requests may overlap.
    Ask { id: u64, request: Request },
    /// Subscribes to changes of the node's pods, each sent as a [`ServerMessage::Change`].
    Subscribe { node: String },
}

/// A message from the process that hosts the pods.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ServerMessage {
    /// The response to a request.
    Answer { id: u64, answer: Response },
    /// A pod changed. Without a status, it no longer exists.
    Change { pod: PodRef, status: Option<Box<PodStatus>> },
}

/// The result of a request.
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

/// Encodes a message as a line.
pub(crate) fn line(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)
        .map_err(|error| Error::internal("encode a message for the mock's backend").caused_by(error))?;
    line.push(b'\n');
    Ok(line)
}
