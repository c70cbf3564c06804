//! The records on disk: one file per sandbox and container, written once when it is complete.

use std::{
    fs, io,
    io::Write,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use vk_pod_engine::backend::{ContainerConfig, SandboxConfig};

use crate::{shim::Launch, spec::user::Identity};

/// File name of a record.
pub(super) const RECORD: &str = "record.json";
/// File name of the record of an incomplete sandbox.
pub(super) const DRAFT: &str = "draft.json";
/// Marker file of a stopped sandbox.
pub(super) const STOPPED: &str = "stopped";

/// The record of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxRecord {
    pub(super) id: String,
    pub(super) config: SandboxConfig,
    pub(super) created: Timestamp,
    /// The boot id of the host when it was created.
    pub(super) boot: String,
    pub(super) ips: Vec<IpAddr>,
    /// File names of the namespaces that are mounted for it.
    pub(super) pins: Vec<String>,
    /// Whether a pause process holds its PID namespace.
    pub(super) pause: bool,
    pub(super) cgroup: Option<String>,
}

/// The record of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerRecord {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) created: Timestamp,
    pub(super) boot: String,
    /// The environment is left out, because it may hold secrets.
    pub(super) config: ContainerConfig,
    /// The image's name, as a runtime reports it.
    pub(super) image: String,
    /// The image's name with its digest.
    pub(super) image_ref: String,
    pub(super) image_id: String,
    /// All names of the images that the container uses.
    pub(super) images: Vec<String>,
    pub(super) identity: Option<Identity>,
    pub(super) stop_signal: i32,
    pub(super) launch: Launch,
}

/// Writes a file atomically.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    let draft = beside(path);
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&text)?;
    drop(file);
    fs::rename(&draft, path)
}

/// Reads a file; `None` if it does not exist.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    serde_json::from_slice(&text).map(Some).map_err(io::Error::other)
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.new"))
}

/// A new random id: 64 hex digits, as containerd uses.
pub(super) fn new_id() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().fold(String::with_capacity(64), |mut id, byte| {
        // Writing to a `String` cannot fail.
        let _ = std::fmt::Write::write_fmt(&mut id, format_args!("{byte:02x}"));
        id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_atomically_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        assert_eq!(read::<Vec<u32>>(&path).unwrap(), None);
        write(&path, &vec![1, 2]).unwrap();
        write(&path, &vec![3]).unwrap();
        assert_eq!(read::<Vec<u32>>(&path).unwrap(), Some(vec![3]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&path, "{").unwrap();
        assert!(read::<Vec<u32>>(&path).is_err());
    }

    #[test]
    fn ids_are_64_hex_digits_and_unique() {
        let (one, other) = (new_id(), new_id());
        assert_eq!(one.len(), 64);
        assert!(one.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(one, other);
    }
}
