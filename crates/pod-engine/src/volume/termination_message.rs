//! Termination messages of containers.

use std::{
    fs, io,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

use super::pod_dirs;
use crate::{
    log,
    snapshot::{Container, ContainerState, annotation},
    text::io_error,
};

/// Maximum size of a message, in bytes: the end of the file counts.
const MAX_BYTES: u64 = 4 * 1024;
/// The part of the log that replaces a missing message.
const LOG_LINES: u64 = 80;
const LOG_BYTES: usize = 2 * 1024;

/// Appends the termination message of an exited container to the runtime's message, as in a kubelet. It reads files, so call it once for each
/// container and keep the result.
pub async fn append_to(container: &mut Container) {
    if container.state != ContainerState::Exited {
        return;
    }
    let ended = container.clone();
    let message = tokio::task::spawn_blocking(move || read(&ended)).await;
    append(&mut container.message, &message.unwrap_or_default());
}

fn append(message: &mut String, more: &str) {
    if !more.is_empty() && !message.is_empty() {
        message.push_str(": ");
    }
    message.push_str(more);
}

/// The termination message of an exited container; empty if it has none.
fn read(container: &Container) -> String {
    let annotated = |key: &str| container.annotations.get(key).map_or("", String::as_str);
    // A container that failed to start has no log.
    let from_log = annotated(annotation::TERMINATION_POLICY) == "FallbackToLogsOnError"
        && container.exit_code != 0
        && container.reason != "ContainerCannotRun";
    let path = annotated(annotation::TERMINATION_PATH);
    let absolute = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mounted = container.mounts.iter().find(|mount| mount.container_path == absolute);
    if let Some(mounted) = mounted.filter(|_| !path.is_empty()) {
        match last(Path::new(&mounted.host_path)) {
            Ok(message) if message.is_empty() && from_log => {}
            Ok(message) => return text(&message),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let (path, error) = (&mounted.host_path, io_error(&error));
                return format!("Error on reading termination log {path}: {error}");
            }
        }
    }
    if !from_log {
        return String::new();
    }
    match log::tail(Path::new(&container.log_path), LOG_LINES, LOG_BYTES) {
        Ok(tail) => text(&tail),
        Err(error) => format!("Error on reading termination message from logs: {}", error.report()),
    }
}

/// The end of a file. The container may have replaced it: a pipe is not waited for, and a symbolic link is not followed.
fn last(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = fs::OpenOptions::new().read(true).custom_flags(pod_dirs::open_flags(flags)).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(MAX_BYTES)))?;
    let mut content = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

/// The text as a kubelet sends it: each invalid byte becomes one replacement character.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    text
}

#[cfg(test)]
mod tests;
