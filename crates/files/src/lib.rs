//! The files of volumes, for providers that have a file system.
//!
//! * [`Writer`] puts a [`FileSet`](vk_provider::resolve::FileSet) into a directory so that readers see all of the old
//!   files or all of the new ones, in the layout that every program which watches a mounted ConfigMap knows.
//! * [`Root`] finds, reads and makes things below a directory that a container may write to, and never leaves it: what a
//!   `subPath` needs, because a container can put a symbolic link in the way at any moment.
//! * [`tree`] removes a directory that containers have filled, or gives it to a group, and follows no link.
//!
//! ```
//! use vk_files::{Root, Writer};
//! use vk_provider::resolve::{File, FileSet};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let place = tempfile::tempdir()?;
//! # let (volume, scratch) = (place.path().join("volume"), place.path().join("scratch"));
//! # std::fs::create_dir(&volume)?;
//! # std::fs::create_dir(&scratch)?;
//! # let now = "2026-11-15T16:30:00Z".parse()?;
//! // A set as a resolver gives it, into the directory that is mounted.
//! let mut set = FileSet::default();
//! set.files.insert("ca.crt".into(), File { content: "PEM".into(), mode: 0o644, owner: None });
//! let mut writer = Writer::open(&volume)?;
//! assert!(writer.write(&set, now)?);
//! assert_eq!(std::fs::read_to_string(volume.join("ca.crt"))?, "PEM");
//!
//! // A subPath of another volume: made where it is missing, and a handle that can be mounted.
//! let root = Root::open(&scratch)?;
//! let handle = root.create_dirs("data/today", 0o755)?;
//! assert!(root.handle("../volume").is_err());
//! # Ok(())
//! # }
//! ```

pub mod error;
pub mod root;
pub mod tree;
pub mod writer;

pub use self::{
    error::{Error, Result},
    root::Root,
    writer::Writer,
};
