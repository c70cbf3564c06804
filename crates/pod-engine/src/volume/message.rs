//! Termination messages: what a container says at its end.

use std::{
    fs, io,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

use super::place;
use crate::{
    log,
    snapshot::{Container, ContainerState, annotation},
};

/// Bytes of all messages of a pod together: each of its containers has an equal share in the status.
pub const POD_LIMIT: usize = 12 * 1024;
/// Bytes of one container's message file that count: the last ones.
pub const LIMIT: u64 = 4 * 1024;
/// Where the log stands in for the file: so many lines, and of those so many bytes.
const LOG_LINES: u64 = 80;
const LOG_BYTES: usize = 2 * 1024;

/// Puts the termination message of a container that has ended behind what the runtime says about its end, as a kubelet does. Reads
/// files, so it is to be done once for a container, and what it gave to be kept.
pub async fn complete(container: &mut Container) {
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

/// The message of a container that has ended; empty where it left none.
fn read(container: &Container) -> String {
    let noted = |key: &str| container.annotations.get(key).map_or("", String::as_str);
    // What could not even be started has no log.
    let from_log = noted(annotation::TERMINATION_POLICY) == "FallbackToLogsOnError"
        && container.exit_code != 0
        && container.reason != "ContainerCannotRun";
    let path = noted(annotation::TERMINATION_PATH);
    let absolute = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mounted = container.mounts.iter().find(|mount| mount.container_path == absolute);
    if let Some(mounted) = mounted.filter(|_| !path.is_empty()) {
        match last(Path::new(&mounted.host_path)) {
            Ok(message) if message.is_empty() && from_log => {}
            Ok(message) => return text(&message),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let (path, error) = (&mounted.host_path, vk_provider::go_text::io_error(&error));
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

/// The last bytes of a file. The container may have put anything there: a pipe that nobody writes to is not waited for, and a link
/// is not followed.
fn last(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = fs::OpenOptions::new().read(true).custom_flags(place::flags(flags)).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(LIMIT)))?;
    let mut content = Vec::new();
    file.take(LIMIT).read_to_end(&mut content)?;
    Ok(content)
}

/// Bytes as a kubelet sends them: each that is no text is one replacement character.
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
