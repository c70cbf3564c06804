//! Exec: simulated commands (see `command`).

use std::sync::Arc;

use async_trait::async_trait;
use vk_provider::{
    ContainerRef, Error, Result,
    ability::{Exec, ExecOptions, Started},
};

use super::{
    command::{self, CommandEnv, MountedFiles},
    console::Console,
    ended, running,
};
use crate::{fault::Call, mock::Mock};

/// Exit code of a process whose container ended (128 + SIGKILL).
pub(super) const KILLED: i32 = 137;

#[async_trait]
impl Exec for Mock {
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started> {
        let guard = self.0.faults.enter(Call::Exec).await?;
        guard.finish(self.execute(container, command, *options).await)
    }
}

impl Mock {
    async fn execute(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: ExecOptions,
    ) -> Result<Started> {
        if command.first().is_none_or(String::is_empty) {
            return Err(Error::invalid(format!("run a command in {container}: none is given")));
        }
        let restarts = running(&self.0.connection, container).await?.restart_count;
        let wants_env = command.iter().any(|word| word.split_whitespace().any(|word| word == "env"));
        let env = if wants_env { self.environment(container, restarts).await? } else { Vec::new() };
        let inputs = self.0.inputs.lock().get(&container.pod.uid).cloned();
        let here = CommandEnv {
            hostname: container.pod.name.to_string(),
            env,
            files: self.0.disks.of(container),
            mounts: MountedFiles { inputs, container: container.container.clone() },
        };
        let (connection, container, words) =
            (Arc::clone(&self.0.connection), container.clone(), command.to_vec());
        Ok(Started::Session(Console::session(options, |console| async move {
            tokio::select! {
                code = command::run(words, console, here) => code,
                () = ended(&connection, &container, restarts) => KILLED,
            }
        })))
    }

    /// The environment of a running container.
    async fn environment(&self, container: &ContainerRef, restarts: i32) -> Result<Vec<(String, String)>> {
        let mut env = vec![("HOSTNAME".to_owned(), container.pod.name.to_string())];
        let inputs = self.0.inputs.lock().get(&container.pod.uid).cloned();
        if let Some(inputs) = inputs {
            let facts = self.facts(&container.pod).await?;
            env.extend(inputs.environment(&container.container, restarts, &facts).await?.pairs());
        }
        Ok(env)
    }
}
