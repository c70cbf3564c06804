//! Finds the socket of the runtime.

use std::{
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use vk_provider::{Error, Result};

/// Default sockets of runtimes, in the order in which they are tried.
pub const SOCKETS: [&str; 3] =
    ["/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock"];

/// Returns the first candidate that is a socket.
pub fn find(candidates: &[impl AsRef<Path>]) -> Result<PathBuf> {
    for candidate in candidates {
        if std::fs::metadata(candidate).is_ok_and(|found| found.file_type().is_socket()) {
            return Ok(candidate.as_ref().to_owned());
        }
    }
    let tried: Vec<String> = candidates.iter().map(|path| path.as_ref().display().to_string()).collect();
    Err(Error::unavailable(format!(
        "find a container runtime: no socket at {}; start containerd or CRI-O, or set `socket` in the provider's \
         configuration",
        tried.join(", ")
    )))
}

/// Parses a socket: a path, or an endpoint as kubelets accept it (`unix:///run/...`).
pub(crate) fn parse(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.contains("://") || !path.starts_with('/') {
        return Err(format!(
            "{text:?} is not the absolute path of a unix socket: write one such as {}",
            SOCKETS[0]
        ));
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_first_socket_is_found_and_plain_files_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let [absent, file, socket, later] =
            ["absent", "file", "socket", "later"].map(|name| folder.path().join(name));
        std::fs::write(&file, "").unwrap();
        let _listeners = [UnixListener::bind(&socket).unwrap(), UnixListener::bind(&later).unwrap()];
        assert_eq!(find(&[absent, file, socket.clone(), later]).unwrap(), socket);
    }

    #[test]
    fn the_error_lists_the_candidates() {
        let error = find(&["/nonexistent/a.sock", "/nonexistent/b.sock"]).unwrap_err();
        for part in ["/nonexistent/a.sock, /nonexistent/b.sock", "`socket`"] {
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn a_socket_is_a_path_or_an_endpoint() {
        assert_eq!(parse("unix:///run/a.sock").unwrap(), Path::new("/run/a.sock"));
        assert_eq!(parse("/run/a.sock").unwrap(), Path::new("/run/a.sock"));
        for wrong in ["run/a.sock", "tcp://127.0.0.1:1", "", "unix://a.sock"] {
            assert!(parse(wrong).unwrap_err().contains("containerd.sock"), "{wrong}");
        }
    }
}
