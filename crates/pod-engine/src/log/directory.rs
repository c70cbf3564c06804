//! Log directories: `<log_root>/<namespace>_<name>_<uid>/<container>/<attempt>.log`.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use vk_provider::{Error, PodRef, Result};

/// The log directory of a pod.
pub fn of_pod(log_root: &Path, pod: &PodRef) -> PathBuf {
    log_root.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
}

/// Creates the log directory of a container, which must exist before the container is created. Returns its path.
pub fn create(log_root: &Path, pod: &PodRef, container: &str) -> Result<PathBuf> {
    let directory = of_pod(log_root, pod).join(container);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&directory)
        .map_err(|error| failed("create log directory", &directory, error))?;
    Ok(directory)
}

/// Removes the logs of a pod, if they exist.
pub async fn remove(log_root: &Path, pod: &PodRef) -> Result<()> {
    let directory = of_pod(log_root, pod);
    let removed = tokio::task::spawn_blocking(move || vk_files::tree::remove(directory)).await;
    removed
        .map_err(|error| Error::internal("remove logs").caused_by(error))?
        .map_err(|error| Error::internal("remove logs").caused_by(error))
}

/// The next attempt number of a container that the runtime no longer knows: one more than the highest number of a log file, including rotated
/// ones; 0 if there is none.
pub fn next_attempt(log_root: &Path, pod: &PodRef, container: &str) -> u32 {
    let Ok(entries) = fs::read_dir(of_pod(log_root, pod).join(container)) else { return 0 };
    let numbers = entries.filter_map(|entry| {
        let entry = entry.ok().filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()))?;
        let name = entry.file_name().into_string().ok()?;
        let (number, rest) = name.split_once('.')?;
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse::<u32>().ok().filter(|_| digits && rest.starts_with("log"))
    });
    numbers.max().map_or(0, |highest| highest.saturating_add(1))
}

fn failed(operation: &str, path: &Path, error: io::Error) -> Error {
    Error::internal(format!("{operation} {}", path.display())).caused_by(error)
}
