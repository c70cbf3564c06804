//! Taking parts of a control plane away and bringing them back.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::ControlPlane;
use super::error::Result;

/// A stopping API server waits for requests that are under way, which can be a minute.
const GRACE: Duration = Duration::from_secs(2);

impl ControlPlane {
    /// Stops the API server as a roll-out would: it may finish what it does, but not for long. Returns when
    /// it is gone and its port is free.
    pub async fn stop_api_server(&self) -> Result<()> {
        self.api_server.stop(GRACE).await
    }

    /// Kills the API server. Returns when it is gone.
    pub async fn kill_api_server(&self) -> Result<()> {
        self.api_server.kill().await
    }

    /// Starts the API server again, on the same port and data, and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<()> {
        self.api_server.start_again(self.deadline).await
    }

    /// Makes the API server hang: connections are accepted by the kernel and never answered.
    pub async fn pause_api_server(&self) -> Result<()> {
        self.api_server.pause().await
    }

    /// Lets a paused API server go on.
    pub async fn resume_api_server(&self) -> Result<()> {
        self.api_server.signal(Signal::SIGCONT).await
    }

    /// Stops etcd. The API server stays and answers with errors.
    pub async fn stop_etcd(&self) -> Result<()> {
        self.etcd.stop(GRACE).await
    }

    /// Starts etcd again, on the same port and data, and waits until it is healthy. The API server needs a
    /// moment more to notice.
    pub async fn start_etcd(&self) -> Result<()> {
        self.etcd.start_again(self.deadline).await
    }

    /// The names and process ids of the components that run.
    pub async fn pids(&self) -> Vec<(&'static str, u32)> {
        let mut pids = Vec::new();
        pids.extend(self.etcd.pid().await);
        pids.extend(self.api_server.pid().await);
        if let Some(controllers) = &self.controllers {
            pids.extend(controllers.manager.pid().await);
            if let Some(scheduler) = &controllers.scheduler {
                pids.extend(scheduler.pid().await);
            }
        }
        pids
    }
}

/// In the order in which nobody misses anybody.
impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(controllers) = &mut self.controllers {
            if let Some(scheduler) = &mut controllers.scheduler {
                scheduler.kill_now();
            }
            controllers.manager.kill_now();
        }
        self.api_server.kill_now();
        self.etcd.kill_now();
    }
}
