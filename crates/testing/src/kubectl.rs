//! The real kubectl, run against a control plane.

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::process::Command;

use crate::control_plane::{ControlPlane, Error};

/// What a finished kubectl left behind.
#[derive(Debug, Clone)]
pub struct Output {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Everything it wrote to standard output.
    pub stdout: String,
    /// Everything it wrote to standard error.
    pub stderr: String,
}

impl Output {
    /// Whether kubectl ended with exit code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

/// Runs kubectl as the administrator of `cluster` and waits for its end.
///
/// Another identity is chosen with `--kubeconfig` among `args`. Dropping the future kills kubectl.
pub async fn kubectl<I, S>(cluster: &ControlPlane, args: I) -> Result<Output, Error>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = cluster.kubectl()?;
    let output = Command::new(&program)
        .args(args)
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        // Its default is in the home folder, where tests have no business.
        .env("KUBECACHEDIR", cluster.data_dir().join("kubectl-cache"))
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| Error::Spawn { component: "kubectl", source })?;
    Ok(Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
