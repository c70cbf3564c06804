//! One control plane for all tests of a test binary.

use std::error::Error as _;

use tokio::sync::OnceCell;

use super::{ControlPlane, Error, Options};

// Never dropped; the guardian ends them with the process.
static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
static SHARED_WITH_SIGNING: OnceCell<ControlPlane> = OnceCell::const_new();
static SHARED_WITH_CONTROLLERS: OnceCell<ControlPlane> = OnceCell::const_new();

impl ControlPlane {
    /// The API server that all tests of this process share; the first one starts it. Keep to a namespace of
    /// your own in it, and start another one to stop or pause it.
    ///
    /// # Panics
    ///
    /// When it cannot be started: a test that needs it fails, and is never skipped.
    pub async fn shared() -> &'static Self {
        shared(&SHARED, Options::default()).await
    }

    /// As [`shared`](Self::shared), with a controller-manager that signs certificates. It is another control plane.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn shared_with_signing() -> &'static Self {
        shared(&SHARED_WITH_SIGNING, Options::with_signing()).await
    }

    /// As [`shared`](Self::shared), with controller-manager and scheduler. It is another control plane.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn shared_with_controllers() -> &'static Self {
        shared(&SHARED_WITH_CONTROLLERS, Options::with_controllers()).await
    }
}

async fn shared(cell: &'static OnceCell<ControlPlane>, options: Options) -> &'static ControlPlane {
    match cell.get_or_try_init(|| ControlPlane::start(options)).await {
        Ok(cluster) => cluster,
        Err(error) => panic!("{}", with_causes(&error)),
    }
}

fn with_causes(error: &Error) -> String {
    let mut text = format!("the shared control plane does not start: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
