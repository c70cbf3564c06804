//! Attach: outputs the log and echoes the input.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use tokio::io::AsyncReadExt;
use vk_provider::{
    ContainerRef, Error, Result,
    ability::{Attach, AttachOptions, Started},
};

use super::{
    console::{BrokenPipe, Console},
    container_status,
    exec::KILLED,
    logs::{Instance, Line},
    running,
};
use crate::{connection::HostConnection, fault::Call, mock::Mock};

#[async_trait]
impl Attach for Mock {
    async fn attach(&self, container: &ContainerRef, options: &AttachOptions) -> Result<Started> {
        let guard = self.0.faults.enter(Call::Attach).await?;
        let started = self.join(container, *options).await;
        guard.finish(started)
    }
}

impl Mock {
    async fn join(&self, container: &ContainerRef, options: AttachOptions) -> Result<Started> {
        let status = running(&self.0.connection, container).await?;
        let restarts = status.restart_count;
        let instance = Instance::current(&status)
            .ok_or_else(|| Error::unavailable(format!("{container} is not running")))?;
        let log = self.follow(container, instance);
        let (connection, container) = (Arc::clone(&self.0.connection), container.clone());
        Ok(Started::Session(Console::session(options, move |console| async move {
            let _ = converse(console, log).await;
            exit_code(&connection, &container, restarts).await
        })))
    }
}

/// Writes the log and echoes the input until the log ends.
async fn converse(
    mut console: Console,
    mut log: futures::stream::BoxStream<'static, std::io::Result<Line>>,
) -> Result<(), BrokenPipe> {
    let mut stdin = console.stdin.take();
    let mut buffer = [0; 4096];
    loop {
        let input = async {
            match &mut stdin {
                Some(stdin) => stdin.read(&mut buffer).await.unwrap_or(0),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            line = log.next() => match line {
                Some(Ok(line)) => console.out(format!("{}\n", line.text)).await?,
                _ => return Ok(()),
            },
            length = input => match length {
                0 => stdin = None,
                length => console.out(&buffer[..length]).await?,
            },
        }
    }
}

/// The exit code of the attached process.
async fn exit_code(connection: &HostConnection, container: &ContainerRef, restarts: i32) -> i32 {
    let Ok(status) = container_status(connection, container).await else { return KILLED };
    let state = if status.restart_count == restarts { &status.state } else { &status.last_state };
    let state = state.as_ref().filter(|state| state.waiting.is_none()).or(status.last_state.as_ref());
    state.and_then(|state| state.terminated.as_ref()).map_or(KILLED, |terminated| terminated.exit_code)
}
