//! Errors of a control plane.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::programs::PROGRAMS;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a control plane could not be started, reached or changed. Retrying does not help: transient problems, such as a port that another
/// process took, were retried already.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program of the control plane was not found.
    #[error(
        "cannot find `{binary}` in {folder}: run `make control-plane`, or set VK_CONTROL_PLANE to a folder \
         with {}",
        PROGRAMS.join(", ")
    )]
    MissingBinary {
        /// The program's file name.
        binary: &'static str,
        /// Where it was expected, and which setting names that folder.
        folder: String,
    },
    /// Another running control plane uses the data folder.
    #[error("the data folder {} is in use by another control plane", .0.display())]
    DataDirInUse(PathBuf),
    /// A file or folder could not be read or written.
    #[error("failed to {operation} {}", .path.display())]
    File {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error("failed to start {component}")]
    Spawn {
        /// Which program.
        component: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A component ended unexpectedly.
    #[error("{component} ended with {status}; {} ends with:\n{tail}", .log.display())]
    Exited {
        /// Which component.
        component: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// Its log file, which is already removed if the data folder was temporary.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A component runs but did not become ready in time.
    #[error("{component} was not ready within {waited:?}: {seen}; {} ends with:\n{tail}", .log.display())]
    NotReady {
        /// Which component.
        component: &'static str,
        /// The deadline.
        waited: Duration,
        /// The result of the last probe.
        seen: String,
        /// Its log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// The configuration of kube-scheduler cannot be used.
    #[error("the configuration of kube-scheduler: {0}")]
    SchedulerConfig(String),
    /// The component does not run, or another process runs it.
    #[error("{0} is not running")]
    NotRunning(&'static str),
    /// The component runs already.
    #[error("{0} is running already")]
    AlreadyRunning(&'static str),
    /// No free port was found.
    #[error("found no free port on {0}")]
    NoFreePort(std::net::IpAddr),
    /// A certificate could not be issued.
    #[error("failed to issue a certificate")]
    Certificate(#[source] rcgen::Error),
    /// Too many groups for a client certificate.
    #[error("a client certificate can name at most two groups, not {0}")]
    TooManyGroups(usize),
    /// A request to the API server failed.
    #[error("failed to {operation}")]
    Api {
        /// What was tried, as a verb.
        operation: String,
        /// Why it failed; boxed because it is large.
        source: Box<kube::Error>,
    },
    /// An object that controllers create did not appear in time.
    #[error("{what} did not appear within {waited:?}")]
    Missing {
        /// What was waited for.
        what: String,
        /// The deadline.
        waited: Duration,
    },
}

impl Error {
    pub(crate) fn file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }

    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Api { operation, source: Box::new(source) }
    }

    /// The component that ended because another process had taken its port.
    pub(crate) fn port_conflict(&self) -> Option<&'static str> {
        match self {
            Self::Exited { component, tail, .. } if tail.contains("address already in use") => {
                Some(component)
            }
            _ => None,
        }
    }
}
