//! The state directory of the nodes of `dev`.

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// State directory of the nodes: in the user's data directory, or a temporary one.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Whether it is removed at the end.
    temporary: bool,
}

// === impl StateDir ===

impl StateDir {
    /// In the given directory, where it is kept; otherwise a temporary directory.
    pub fn new(data_dir: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(folder) = data_dir {
            let path = std::path::absolute(folder.join("state"))
                .with_context(|| format!("{} is not a path", folder.display()))?;
            return Ok(Self { path, temporary: false });
        }
        let path = std::env::temp_dir().join(format!("vk-dev-{:016x}", rand::random::<u64>()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path, temporary: true })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hands over the responsibility for the removal; returns the path to remove.
    pub(super) fn hand_over(mut self) -> Option<PathBuf> {
        std::mem::take(&mut self.temporary).then(|| self.path.clone())
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // Nothing was started, so it is empty.
        if self.temporary {
            drop(fs::remove_dir(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_is_removed_unless_handed_over() {
        let state = StateDir::new(None).unwrap();
        let path = state.path().to_owned();
        assert!(path.is_dir());
        drop(state);
        assert!(!path.exists());
        let state = StateDir::new(None).unwrap();
        let path = state.hand_over().unwrap();
        assert!(path.is_dir());
        fs::remove_dir(path).unwrap();
    }

    #[test]
    fn a_directory_of_the_user_is_kept() {
        let state = StateDir::new(Some(Path::new("/data"))).unwrap();
        assert_eq!(state.path(), Path::new("/data/state"));
        assert_eq!(state.hand_over(), None);
    }
}
