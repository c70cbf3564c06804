//! Volume files, for providers with a file system.
//!
//! * [`AtomicWriter`] writes a [`FileSet`](vk_provider::resolve::FileSet) into a directory so that readers see all of the old files
//!   or all of the new ones, in the kubelet's layout, which programs that watch a mounted ConfigMap rely on.
//! * [`RootDir`] opens, reads and creates things below a directory that a container may write to, and never leaves it: a
//!   `subPath` needs this, because a container can create a symbolic link at any moment.
//! * [`tree`] removes a directory that containers have filled, or changes its group (`fsGroup`), without following links.
//!
//! ```
//! use vk_files::{RootDir, AtomicWriter};
//! use vk_provider::resolve::{File, FileSet, Origin};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let place = tempfile::tempdir()?;
//! # let (volume, scratch) = (place.path().join("volume"), place.path().join("scratch"));
//! # std::fs::create_dir(&volume)?;
//! # std::fs::create_dir(&scratch)?;
//! # let now = "2026-11-15T16:30:00Z".parse()?;
//! // Write a resolver's file set into the mounted directory.
//! let mut set = FileSet::default();
//! set.files.insert("ca.crt".into(), File::new("PEM", 0o644, Origin::ConfigMap));
//! let mut writer = AtomicWriter::open(&volume)?;
//! assert!(writer.write(&set, now)?);
//! assert_eq!(std::fs::read_to_string(volume.join("ca.crt"))?, "PEM");
//!
//! // A subPath of another volume: create it if it is missing, and get a handle that can be mounted.
//! let root = RootDir::open(&scratch)?;
//! let handle = root.create_dirs("data/today", 0o755)?;
//! assert!(root.handle("../volume").is_err());
//! # Ok(())
//! # }
//! ```

pub mod atomic_writer;
pub mod error;
pub mod root_dir;
pub mod tree;

pub use self::{
    atomic_writer::AtomicWriter,
    error::{Error, Result},
    root_dir::RootDir,
};
