//! Exec: commands that are made up (see `command`).

use std::sync::Arc;

use async_trait::async_trait;
use vk_provider::{
    ContainerRef, Error, Result,
    ability::{Exec, ExecOptions, Started},
    resolve::Facts,
};

use super::{
    command::{self, Surroundings},
    console::Console,
    ended, running,
};
use crate::{fault::Call, mock::Mock};

/// The code of a process whose container ended under it (128 + SIGKILL).
pub(super) const KILLED: i32 = 137;

#[async_trait]
impl Exec for Mock {
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started> {
        let pass = self.0.faults.enter(Call::Exec).await?;
        pass.leave(self.execute(container, command, *options).await)
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
        let restarts = running(&self.0.link, container).await?.restart_count;
        let wants_env = command.iter().any(|word| word.split_whitespace().any(|word| word == "env"));
        let env = if wants_env { self.environment(container).await? } else { Vec::new() };
        let here =
            Surroundings { hostname: container.pod.name.to_string(), env, files: self.0.disks.of(container) };
        let (link, container, words) = (Arc::clone(&self.0.link), container.clone(), command.to_vec());
        Ok(Started::Session(Console::session(options, |console| async move {
            tokio::select! {
                code = command::run(words, console, here) => code,
                () = ended(&link, &container, restarts) => KILLED,
            }
        })))
    }

    /// The container's environment. A real container keeps what it was started with; this is resolved when asked for.
    async fn environment(&self, container: &ContainerRef) -> Result<Vec<(String, String)>> {
        let status = self.0.link.status(&container.pod).await?;
        let pod_ips = status.pod_ip.iter().filter_map(|ip| ip.parse().ok()).collect();
        let facts = Facts { pod_ips, host_ips: vec![self.0.host_ip] };
        let bundle = self.0.bundles.lock().get(&container.pod.uid).cloned();
        let mut env = vec![("HOSTNAME".to_owned(), container.pod.name.to_string())];
        let Some(bundle) = bundle else { return Ok(env) };
        if let Ok(inputs) = bundle.resolver.container(&container.container, &facts).await {
            env.extend(inputs.env);
        } else {
            // Without a resolver that can, what the spec says literally.
            let spec = bundle.pod.spec.as_ref();
            let containers = spec.into_iter().flat_map(|spec| &spec.containers);
            let own = containers.filter(|known| known.name == container.container);
            let literal = own.flat_map(|known| known.env.iter().flatten());
            env.extend(literal.map(|var| (var.name.clone(), var.value.clone().unwrap_or_default())));
        }
        Ok(env)
    }
}
