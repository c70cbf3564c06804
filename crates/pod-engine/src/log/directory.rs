//! Where logs are: `<log_root>/<namespace>_<name>_<uid>/<container>/<attempt>.log`.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use vk_provider::{Error, PodRef, Result};

/// The directory of a pod's logs.
pub fn of_pod(log_root: &Path, pod: &PodRef) -> PathBuf {
    log_root.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
}

/// Makes the directory of a container's logs, as it must be before the container is made, and tells where it is.
pub fn create(log_root: &Path, pod: &PodRef, container: &str) -> Result<PathBuf> {
    let directory = of_pod(log_root, pod).join(container);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&directory)
        .map_err(|error| failed("create log directory", &directory, error))?;
    Ok(directory)
}

/// Removes the logs of a pod. Nothing there is fine.
pub async fn remove(log_root: &Path, pod: &PodRef) -> Result<()> {
    let directory = of_pod(log_root, pod);
    let removed = tokio::task::spawn_blocking(move || vk_files::tree::remove(directory)).await;
    removed
        .map_err(|error| Error::internal("remove logs").caused_by(error))?
        .map_err(|error| Error::internal("remove logs").caused_by(error))
}

/// The number for the next attempt of a container of which the runtime knows nothing any more: one more than the highest that has
/// a log file, rotated ones included; 0 where there is none.
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
