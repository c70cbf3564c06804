//! Control planes that tests share: between the tests of a process, and between processes when a test runner has started them.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::error::{Error, Result};
use crate::{ControlPlane, Options};

/// The environment variable that names the file of [`ControlPlane::start_shared`]. Without it, each test process starts its own.
pub const SHARED_CONTROL_PLANES: &str = "VK_SHARED_CONTROL_PLANES";

// Never dropped; their cleanup processes end them with this process.
static API_SERVER: OnceCell<ControlPlane> = OnceCell::const_new();
static SIGNING: OnceCell<ControlPlane> = OnceCell::const_new();
static CONTROLLERS: OnceCell<ControlPlane> = OnceCell::const_new();

/// The control planes of a test run.
#[derive(Debug, Serialize, Deserialize)]
struct SharedControlPlanes {
    api_server: SharedControlPlane,
    signing: SharedControlPlane,
    controllers: SharedControlPlane,
}

/// What a process needs to attach to a control plane.
#[derive(Debug, Serialize, Deserialize)]
struct SharedControlPlane {
    url: String,
    data_dir: PathBuf,
}

// === impl SharedControlPlanes ===

impl SharedControlPlanes {
    fn from_env() -> Result<Option<Self>> {
        let Some(file) = std::env::var_os(SHARED_CONTROL_PLANES).map(PathBuf::from) else { return Ok(None) };
        let text = std::fs::read_to_string(&file).map_err(Error::file("read", &file))?;
        let parsed = serde_json::from_str(&text);
        parsed.map(Some).map_err(|error| Error::file("parse", &file)(error.into()))
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts the control planes of a test run, and writes to `file` how to reach them. They end with the returned handles.
    pub async fn start_shared(file: &Path) -> Result<Vec<Self>> {
        let (api_server, signing, controllers) = tokio::try_join!(
            Self::start(Options::default()),
            Self::start(Options::with_signing()),
            Self::start(Options::with_controllers()),
        )?;
        let describe = |cluster: &Self| SharedControlPlane {
            url: cluster.url.clone(),
            data_dir: cluster.data_dir.clone(),
        };
        let planes = SharedControlPlanes {
            api_server: describe(&api_server),
            signing: describe(&signing),
            controllers: describe(&controllers),
        };
        let text = serde_json::to_string(&planes).expect("strings and paths serialize");
        // Whole or not at all: the test runner waits for the file.
        let temporary = file.with_extension("tmp");
        std::fs::write(&temporary, text).map_err(Error::file("write", &temporary))?;
        std::fs::rename(&temporary, file).map_err(Error::file("write", file))?;
        Ok(vec![api_server, signing, controllers])
    }

    /// An API server that all tests share. Use your own namespace and node names, and start your own control plane to stop or pause it.
    ///
    /// # Panics
    ///
    /// When it cannot be started: a test that needs it fails and is never skipped.
    pub async fn shared() -> &'static Self {
        shared(&API_SERVER, |planes| planes.api_server, Options::default()).await
    }

    /// As [`shared`](Self::shared), a different control plane whose controller-manager signs certificates.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn shared_with_signing() -> &'static Self {
        shared(&SIGNING, |planes| planes.signing, Options::with_signing()).await
    }

    /// As [`shared`](Self::shared), a different control plane with controller-manager and scheduler.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub async fn shared_with_controllers() -> &'static Self {
        shared(&CONTROLLERS, |planes| planes.controllers, Options::with_controllers()).await
    }
}

async fn shared(
    cell: &'static OnceCell<ControlPlane>,
    select: fn(SharedControlPlanes) -> SharedControlPlane,
    options: Options,
) -> &'static ControlPlane {
    let start = async || match SharedControlPlanes::from_env()?.map(select) {
        Some(plane) => ControlPlane::attach(&plane.url, &plane.data_dir, options.controllers),
        None => ControlPlane::start(options.clone()).await,
    };
    match cell.get_or_try_init(start).await {
        Ok(cluster) => cluster,
        Err(error) => panic!("{}", with_causes(&error)),
    }
}

fn with_causes(error: &Error) -> String {
    let mut text = format!("start the shared control plane: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
