//! A runtime that only runs commands, with scripted results.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use vk_provider::{
    Error, PodEvent, Result,
    ability::{AttachOptions, ExecOptions, Forward, Started},
    resolve::PullCredentials,
};

use crate::{
    backend::{
        self, ContainerBackend, ContainerConfig, ExecOutput, FsUsage, Image, Listing, PodUsage, SandboxConfig,
    },
    probe::EventRecorder,
    snapshot::{Container, Sandbox},
};

/// The behaviour of a command.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    Ends(i32, &'static str),
    TimesOut(&'static str),
    Fails(&'static str),
    Hangs,
}

/// The runtime.
#[derive(Default)]
pub(crate) struct ScriptedRuntime {
    /// The results of the next commands; the last one is repeated.
    script: Mutex<VecDeque<Script>>,
    /// The commands that were run: container and words.
    pub(crate) commands: Mutex<Vec<(String, Vec<String>)>>,
    /// The timeouts of the commands.
    pub(crate) limits: Mutex<Vec<Duration>>,
    /// Number of running commands.
    pub(crate) running: AtomicUsize,
}

/// Recorded events.
#[derive(Clone, Default)]
pub(crate) struct RecordedEvents(Arc<Mutex<Vec<PodEvent>>>);

struct Guard<'a>(&'a AtomicUsize);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl RecordedEvents {
    pub(crate) fn sink(&self) -> EventRecorder {
        let told = self.clone();
        Arc::new(move |event| told.0.lock().push(event))
    }

    /// Reasons and messages.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        self.0.lock().iter().map(|event| (event.reason.clone(), event.message.clone())).collect()
    }

    pub(crate) fn whole(&self) -> Vec<PodEvent> {
        self.0.lock().clone()
    }
}

impl ScriptedRuntime {
    pub(crate) fn that(script: impl IntoIterator<Item = Script>) -> Arc<Self> {
        Arc::new(Self { script: Mutex::new(script.into_iter().collect()), ..Self::default() })
    }

    /// Sets the behaviour from now on.
    pub(crate) fn now(&self, script: impl IntoIterator<Item = Script>) {
        *self.script.lock() = script.into_iter().collect();
    }

    pub(crate) fn count(&self) -> usize {
        self.commands.lock().len()
    }

    fn next(&self) -> Script {
        let mut script = self.script.lock();
        if script.len() > 1 { script.pop_front() } else { script.front().cloned() }
            .expect("the test says what commands do")
    }
}

fn cannot<T>() -> Result<T> {
    Err(Error::unsupported("this runtime only runs commands"))
}

#[async_trait]
impl ContainerBackend for ScriptedRuntime {
    async fn run(&self, container: &str, command: &[String], limit: Duration) -> Result<ExecOutput> {
        self.commands.lock().push((container.to_owned(), command.to_vec()));
        self.limits.lock().push(limit);
        self.running.fetch_add(1, SeqCst);
        let _guard = Guard(&self.running);
        let does = self.next();
        match does {
            Script::Ends(code, output) => Ok(ExecOutput::Exited { code, output: output.into() }),
            Script::TimesOut(message) => Ok(ExecOutput::TimedOut { message: message.to_owned() }),
            Script::Fails(message) => Err(Error::unavailable("refused").caused_by(message)),
            Script::Hangs => std::future::pending().await,
        }
    }

    async fn runtime(&self) -> Result<backend::RuntimeInfo> {
        cannot()
    }
    async fn run_sandbox(&self, _: &SandboxConfig) -> Result<String> {
        cannot()
    }
    async fn stop_sandbox(&self, _: &str) -> Result<()> {
        cannot()
    }
    async fn remove_sandbox(&self, _: &str) -> Result<()> {
        cannot()
    }
    async fn sandbox(&self, _: &str) -> Result<Sandbox> {
        cannot()
    }
    async fn create_container(&self, _: &str, _: &ContainerConfig, _: &SandboxConfig) -> Result<String> {
        cannot()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        cannot()
    }
    async fn stop_container(&self, _: &str, _: Duration) -> Result<()> {
        cannot()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        cannot()
    }
    async fn container(&self, _: &str) -> Result<Container> {
        cannot()
    }
    async fn list(&self, _: &BTreeMap<String, String>) -> Result<Listing> {
        cannot()
    }
    async fn exec(&self, _: &str, _: &[String], _: &ExecOptions) -> Result<Started> {
        cannot()
    }
    async fn attach(&self, _: &str, _: &AttachOptions) -> Result<Started> {
        cannot()
    }
    async fn port_forward(&self, _: &str, _: u16) -> Result<Forward> {
        cannot()
    }
    async fn reopen_log(&self, _: &str) -> Result<()> {
        cannot()
    }
    async fn image(&self, _: &str, _: &str) -> Result<Option<Image>> {
        cannot()
    }
    async fn images(&self) -> Result<Vec<Image>> {
        cannot()
    }
    async fn pull(&self, _: &str, _: Option<&PullCredentials>, _: &SandboxConfig) -> Result<String> {
        cannot()
    }
    async fn remove_image(&self, _: &str) -> Result<()> {
        cannot()
    }
    async fn used_images(&self) -> Result<std::collections::BTreeSet<String>> {
        cannot()
    }
    async fn image_fs(&self) -> Result<Vec<FsUsage>> {
        cannot()
    }
    async fn usage(&self, _: &BTreeMap<String, String>) -> Result<Vec<PodUsage>> {
        cannot()
    }
}
