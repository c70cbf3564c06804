//! Setup and tear-down of a pod's volumes, with retries.

use std::time::Duration;

use tokio::sync::watch;
use vk_provider::{PodBundle, Result};
use vk_supervisor::Backoff;

use super::context::PodScope;
use crate::volume::{PodVolumes, VolumeFailure};

/// The volumes of a pod, and the retries of their setup.
pub(super) struct PodMounts {
    volumes: PodVolumes,
    /// The last setup failed and is retried.
    is_pending: bool,
    retry: Backoff,
}

// === impl PodMounts ===

impl PodMounts {
    pub(super) fn new(scope: &PodScope) -> Self {
        let context = &scope.context;
        Self {
            volumes: PodVolumes::new(&context.dirs, &scope.pod().uid, context.clock.clone()),
            is_pending: false,
            retry: Backoff::new(Duration::from_millis(500), Duration::from_secs(122)),
        }
    }

    pub(super) fn volumes(&self) -> &PodVolumes {
        &self.volumes
    }

    /// Sets up all volumes. On failure it returns the failures and the delay before the next attempt.
    pub(super) async fn set_up(&mut self, bundle: &PodBundle) -> Result<(), (Vec<VolumeFailure>, Duration)> {
        let ready = self.volumes.ready(bundle).await;
        self.is_pending = ready.is_err();
        match ready {
            Ok(()) => {
                self.retry.reset();
                Ok(())
            }
            Err(failures) => Err((failures, self.retry.next(None, &mut rand::rng()))),
        }
    }

    /// Does not retry a failed setup: the pod is being stopped.
    pub(super) fn cancel_setup(&mut self) {
        self.is_pending = false;
    }

    /// Unmounts and removes the volumes.
    pub(super) async fn tear_down(&mut self) -> Result<()> {
        self.is_pending = false;
        self.volumes.tear_down().await
    }

    /// The receiver for [`changed`](Self::changed).
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.volumes.changes()
    }

    /// Resolves when a failed setup may succeed now.
    pub(super) async fn changed(&self, changes: &mut watch::Receiver<u64>) {
        if !self.is_pending {
            return std::future::pending().await;
        }
        self.volumes.changed(changes).await;
    }
}
