//! What is written down about sandboxes and containers: once, when they are made.

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

/// The file of a record.
pub(super) const RECORD: &str = "record.json";
/// The file of what is being made.
pub(super) const DRAFT: &str = "draft.json";
/// Says that a sandbox was stopped.
pub(super) const STOPPED: &str = "stopped";

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxRecord {
    pub(super) id: String,
    pub(super) config: SandboxConfig,
    pub(super) created: Timestamp,
    /// Which start of the machine it was made in.
    pub(super) boot: String,
    pub(super) ips: Vec<IpAddr>,
    /// Whether namespaces were mounted for it, by their files' names.
    pub(super) pins: Vec<String>,
    /// Whether a process holds the namespace of its processes.
    pub(super) pause: bool,
    pub(super) cgroup: Option<String>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerRecord {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) created: Timestamp,
    pub(super) boot: String,
    /// Without its environment, which may be secret.
    pub(super) config: ContainerConfig,
    /// The image's name, as runtimes tell it.
    pub(super) image: String,
    /// The same with its digest.
    pub(super) image_ref: String,
    pub(super) image_id: String,
    /// Everything that names the images that it uses.
    pub(super) images: Vec<String>,
    pub(super) identity: Option<Identity>,
    pub(super) stop_signal: i32,
    pub(super) launch: Launch,
}

/// Writes a file whole or not at all.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    let draft = beside(path);
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&text)?;
    drop(file);
    fs::rename(&draft, path)
}

/// Reads a file; `None` where it is not there.
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

/// A new id, as everybody's look.
pub(super) fn new_id() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().fold(String::with_capacity(64), |mut id, byte| {
        // A String takes everything.
        let _ = std::fmt::Write::write_fmt(&mut id, format_args!("{byte:02x}"));
        id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_and_for_us_alone() {
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
    fn ids_are_64_digits_and_never_the_same() {
        let (one, other) = (new_id(), new_id());
        assert_eq!(one.len(), 64);
        assert!(one.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(one, other);
    }
}
