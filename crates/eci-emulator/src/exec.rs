//! ExecContainerCommand: a command in a container, over a WebSocket or at once.
//!
//! Binary messages begin with the channel, as in Kubernetes: 0 input, 1 output, 2 errors, 3 the end as a Status, 4 the size.
//! 255 and a channel close that channel, as in version 5 of the Kubernetes protocol.

mod session;
mod socket;

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};

pub(crate) use self::{
    session::{Command, Input, Output, Running},
    socket::serve,
};
use crate::{
    cloud::GroupStatus,
    emulator::Emulator,
    error::{ApiError, Result},
    limits,
};

/// How long the address of a session can be used.
const VALID: SignedDuration = SignedDuration::from_secs(30);
/// Longest output of a command that is run at once.
const MAX_OUTPUT: usize = 1 << 20;

/// Sessions whose connection has not come yet.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, (Timestamp, Command)>>);

// === impl Sessions ===

impl Sessions {
    fn take(&self, token: &str, now: Timestamp) -> Option<Command> {
        let (created, command) = self.0.lock().remove(token)?;
        (now.duration_since(created) <= VALID).then_some(command)
    }
}

// === impl Emulator ===

impl Emulator {
    pub(crate) async fn exec(self: &Arc<Self>, request: &Value) -> Result<Value> {
        let words = limits::command(request)?;
        let is = |name: &str, default: bool| request[name].as_bool().unwrap_or(default);
        let (sync, tty) = (is("Sync", false), is("TTY", false));
        if sync && (tty || words.first().is_some_and(|first| first == "/bin/bash")) {
            return Err(ApiError::invalid(
                "Sync",
                "Sync needs TTY=false and another command than /bin/bash.",
            ));
        }
        let id = request["ContainerGroupId"].as_str().unwrap_or_default();
        let name = request["ContainerName"].as_str().unwrap_or_default();
        let (group, container, now) = self.with_cloud(|cloud| {
            let now = cloud.now();
            let (number, group) = cloud.find(id)?;
            let (index, container) = group.container(name).ok_or_else(|| {
                ApiError::new(404, "ContainerName.NotFound", format!("The container {name} does not exist."))
            })?;
            if group.status != GroupStatus::Running || !container.is_running() {
                let message = format!("The container {name} is not running.");
                return Err(ApiError::new(403, "IncorrectStatus", message));
            }
            Ok((number, index, now))
        })?;
        let command = Command { group, container, words, stdin: is("Stdin", true) && !sync, tty };
        if !sync {
            let token = self.cloud.lock().new_id("");
            let authority = &self.authority;
            let uri = format!("ws://{authority}/exec/{token}");
            self.sessions.0.lock().insert(token.clone(), (now, command));
            return Ok(json!({"WebSocketUri": uri, "HttpUrl": format!("http://{authority}/exec/{token}")}));
        }
        let mut running = session::start(self, &command)
            .map_err(|error| ApiError::new(500, "InternalError", error.to_string()))?;
        running.close_input();
        let mut text = Vec::new();
        while let Some(output) = running.next().await {
            match output {
                Output::Out(bytes) | Output::Err(bytes) => text.extend(bytes),
                Output::End(_) => break,
            }
            text.truncate(MAX_OUTPUT);
        }
        Ok(json!({"SyncResponse": String::from_utf8_lossy(&text)}))
    }
}
