//! Runs kubectl against a control plane.

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::process::Command;

use crate::{ControlPlane, Error};

/// The result of a kubectl command.
#[derive(Debug, Clone)]
pub struct Output {
    /// The exit code; `None` when a signal ended kubectl.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Whether the exit code is 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

/// Runs kubectl as administrator of `cluster` and waits for its end.
///
/// `--kubeconfig` in `args` chooses another identity. Dropping the future kills kubectl.
pub async fn kubectl<I, S>(cluster: &ControlPlane, args: I) -> Result<Output, Error>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = cluster.kubectl()?;
    let output = Command::new(&program)
        .args(args)
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        // Not in the home directory, which is the default.
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
