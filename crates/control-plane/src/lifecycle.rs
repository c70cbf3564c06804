//! Stops, pauses and starts single components of a control plane.

use std::time::Duration;

use rustix::process::Signal;

use crate::component::Component;
use crate::error::{Error, Result};
use crate::{Components, ControlPlane, SCHEDULER_CONFIG, SCHEDULER_KUBECONFIG, scheduler_config};

/// A stopping API server waits for running requests, which can take a minute.
const GRACE: Duration = Duration::from_secs(2);

impl ControlPlane {
    /// Stops the API server as a rollout does, with a short grace period. Returns when it has ended and its port is free.
    pub async fn stop_api_server(&self) -> Result<()> {
        self.api_server()?.stop(GRACE).await
    }

    /// Kills the API server. Returns when it has ended.
    pub async fn kill_api_server(&self) -> Result<()> {
        self.api_server()?.kill().await
    }

    /// Starts the API server again, on the same port and data, and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<()> {
        self.api_server()?.start_again(self.deadline).await
    }

    /// Pauses the API server: the kernel accepts connections and nothing answers.
    pub async fn pause_api_server(&self) -> Result<()> {
        self.api_server()?.pause().await
    }

    /// Resumes a paused API server.
    pub async fn resume_api_server(&self) -> Result<()> {
        self.api_server()?.signal(Signal::CONT).await
    }

    /// Pauses the scheduler: pods that are created meanwhile wait.
    pub async fn pause_scheduler(&self) -> Result<()> {
        self.scheduler()?.pause().await
    }

    /// Resumes a paused scheduler.
    pub async fn resume_scheduler(&self) -> Result<()> {
        self.scheduler()?.signal(Signal::CONT).await
    }

    /// Stops etcd. The API server keeps running and answers with errors.
    pub async fn stop_etcd(&self) -> Result<()> {
        self.etcd()?.stop(GRACE).await
    }

    /// Starts etcd again, on the same port and data, and waits until it is healthy. The API server notices a moment later.
    pub async fn start_etcd(&self) -> Result<()> {
        self.etcd()?.start_again(self.deadline).await
    }

    /// Stops the scheduler and starts it again with another configuration, on the same port, and waits until it is healthy. The control plane was
    /// started with [`Options::scheduler_config`](crate::Options::scheduler_config), which says what is filled in.
    pub async fn restart_scheduler(&self, config: &str) -> Result<()> {
        let scheduler = self.scheduler()?;
        let file = self.data_dir().join(SCHEDULER_CONFIG);
        if !file.exists() {
            return Err(Error::SchedulerConfig("the scheduler was started without one".to_owned()));
        }
        scheduler_config::write(&file, config, &self.data_dir().join(SCHEDULER_KUBECONFIG))?;
        match scheduler.stop(GRACE).await {
            Ok(()) | Err(Error::NotRunning(_)) => {}
            Err(error) => return Err(error),
        }
        scheduler.start_again(self.deadline).await
    }

    /// The names and process ids of the running components.
    pub async fn pids(&self) -> Vec<(&'static str, u32)> {
        let mut pids = Vec::new();
        if let Some(components) = &self.components {
            pids.extend(components.etcd.pid().await);
            pids.extend(components.api_server.pid().await);
            for component in [&components.controller_manager, &components.scheduler].into_iter().flatten() {
                pids.extend(component.pid().await);
            }
        }
        pids
    }

    fn scheduler(&self) -> Result<&Component> {
        let scheduler = self.components.as_ref().and_then(|components| components.scheduler.as_ref());
        scheduler.ok_or(Error::NotRunning("kube-scheduler"))
    }

    fn etcd(&self) -> Result<&Component> {
        self.components.as_ref().map(|components| &components.etcd).ok_or(Error::NotRunning("etcd"))
    }

    fn api_server(&self) -> Result<&Component> {
        let components = self.components.as_ref().ok_or(Error::NotRunning("kube-apiserver"))?;
        Ok(&components.api_server)
    }
}

/// Clients end before their servers.
impl Drop for Components {
    fn drop(&mut self) {
        for component in [&mut self.scheduler, &mut self.controller_manager].into_iter().flatten() {
            component.kill_now();
        }
        self.api_server.kill_now();
        self.etcd.kill_now();
    }
}
