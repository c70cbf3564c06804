//! Events of shims: hints that a container of a pod changed.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd},
    path::Path,
    sync::Arc,
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixDatagram;

/// Name of the socket in the backend's directory.
pub(super) const SOCKET: &str = "events.sock";
/// Longer than any event.
const MAX_EVENT: usize = 512;

/// Binds the socket. The directory's path may be longer than a socket address allows.
pub(super) fn bind(directory: &Path) -> io::Result<UnixDatagram> {
    match fs::remove_file(directory.join(SOCKET)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let handle =
        rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    UnixDatagram::bind(format!("/proc/self/fd/{}/{SOCKET}", handle.as_fd().as_raw_fd()))
}

/// The pod UIDs that shims send.
pub(super) fn stream(socket: Arc<UnixDatagram>) -> BoxStream<'static, String> {
    stream::unfold(socket, |socket| async move {
        let mut buffer = [0; MAX_EVENT];
        loop {
            match socket.recv(&mut buffer).await {
                Ok(length) => {
                    let uid = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
                    if !uid.is_empty() {
                        return Some((uid, socket));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "receiving container events failed; container states are now only polled once a second");
                    return None;
                }
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_of_shims_are_received_in_a_directory_with_a_long_path() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(200));
        fs::create_dir(&long).unwrap();
        let socket = Arc::new(bind(&long).unwrap());
        let sender = UnixDatagram::unbound().unwrap();
        let handle = rustix::fs::open(&long, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let path = format!("/proc/self/fd/{}/{SOCKET}", handle.as_raw_fd());
        sender.send_to(b"", &path).await.unwrap();
        sender.send_to(b"uid-1\n", &path).await.unwrap();
        assert_eq!(stream(socket).next().await.as_deref(), Some("uid-1"));
        drop(bind(&long).unwrap());
    }
}
