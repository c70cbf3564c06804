//! Where the nodes of `dev` keep what they have.

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// The state directory of the nodes: in the user's data folder, or one that goes away.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    /// Whether it goes away.
    temporary: bool,
}

// === impl State ===

impl State {
    /// In a folder that the user named, where it stays; else in one of its own, where it does not.
    pub fn below(data_dir: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(folder) = data_dir {
            let path = std::path::absolute(folder.join("state"))
                .with_context(|| format!("{} is not a path", folder.display()))?;
            return Ok(Self { path, temporary: false });
        }
        let path = std::env::temp_dir().join(format!("vk-dev-{:016x}", rand::random::<u64>()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self { path, temporary: true })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What somebody else has to remove from now on.
    pub(super) fn hand_over(mut self) -> Option<PathBuf> {
        std::mem::take(&mut self.temporary).then(|| self.path.clone())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Nothing was begun, so nothing is in it.
        if self.temporary {
            drop(fs::remove_dir(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_goes_unless_somebody_else_sees_to_it() {
        let state = State::below(None).unwrap();
        let path = state.path().to_owned();
        assert!(path.is_dir());
        drop(state);
        assert!(!path.exists());
        let state = State::below(None).unwrap();
        let path = state.hand_over().unwrap();
        assert!(path.is_dir());
        fs::remove_dir(path).unwrap();
    }

    #[test]
    fn a_folder_that_the_user_named_stays() {
        let state = State::below(Some(Path::new("/data"))).unwrap();
        assert_eq!(state.path(), Path::new("/data/state"));
        assert_eq!(state.hand_over(), None);
    }
}
