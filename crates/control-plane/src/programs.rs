//! Finds the programs of a control plane.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The programs of a control plane.
pub(crate) const PROGRAMS: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

/// Written last by the build: a version folder without it is incomplete.
const STAMP: &str = ".recipe";

/// The folder with the programs.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    folder: PathBuf,
    /// The setting that names the folder, for errors.
    named_by: &'static str,
}

/// The environment that the lookup reads: a parameter, because tests cannot change the environment.
#[derive(Debug, Default)]
struct Environment {
    vk_control_plane: Option<OsString>,
    kubebuilder_assets: Option<OsString>,
    cache: Option<PathBuf>,
}

// === impl Programs ===

impl Programs {
    /// Uses the folder given by the caller, else by the environment, else the user's cache.
    pub(crate) fn find(explicit: Option<&Path>) -> Result<Self> {
        match explicit {
            Some(folder) => Ok(Self { folder: folder.to_owned(), named_by: "the options" }),
            None => Self::find_in(&Environment::read()),
        }
    }

    fn find_in(environment: &Environment) -> Result<Self> {
        if let Some(folder) = &environment.vk_control_plane {
            return Ok(Self { folder: folder.into(), named_by: "VK_CONTROL_PLANE" });
        }
        if let Some(folder) = &environment.kubebuilder_assets {
            return Ok(Self { folder: folder.into(), named_by: "KUBEBUILDER_ASSETS" });
        }
        let missing = |folder| Error::MissingBinary { binary: PROGRAMS[0], folder };
        let Some(cache) = &environment.cache else {
            return Err(missing("the user's cache, as neither XDG_CACHE_HOME nor HOME is set".to_owned()));
        };
        let root = cache.join("virtual-kubelet/control-plane");
        let newest = newest_version(&root).ok_or_else(|| missing(root.display().to_string()))?;
        Ok(Self { folder: newest, named_by: "the user's cache" })
    }

    /// The path of a program; fails if it does not exist.
    pub(crate) fn program(&self, binary: &'static str) -> Result<PathBuf> {
        let path = self.folder.join(binary);
        if path.is_file() {
            return Ok(path);
        }
        let folder = format!("{} (named by {})", self.folder.display(), self.named_by);
        Err(Error::MissingBinary { binary, folder })
    }
}

// === impl Environment ===

impl Environment {
    fn read() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
        Self {
            vk_control_plane: set("VK_CONTROL_PLANE"),
            kubebuilder_assets: set("KUBEBUILDER_ASSETS"),
            cache,
        }
    }
}

fn newest_version(root: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(root).ok()?;
    entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|folder| folder.join(STAMP).is_file())
        .max_by(|a, b| compare_versions(a, b))
}

/// Compares numerically: v1.36.10 is newer than v1.36.9.
fn compare_versions(a: &Path, b: &Path) -> Ordering {
    let numbers = |path: &Path| -> Vec<u64> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    numbers(a).cmp(&numbers(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(root: &Path, version: &str) {
        let folder = root.join("virtual-kubelet/control-plane").join(version);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(STAMP), "").unwrap();
    }

    #[test]
    fn the_newest_finished_version_of_the_cache_is_taken() {
        let cache = tempfile::tempdir().unwrap();
        built(cache.path(), "v1.36.9");
        built(cache.path(), "v1.36.10");
        // Not complete: no stamp.
        std::fs::create_dir_all(cache.path().join("virtual-kubelet/control-plane/v1.37.0")).unwrap();

        let environment = Environment { cache: Some(cache.path().to_owned()), ..Environment::default() };
        let programs = Programs::find_in(&environment).unwrap();
        assert!(programs.folder.ends_with("v1.36.10"), "{}", programs.folder.display());
    }

    #[test]
    fn our_own_variable_wins_over_kubebuilders_and_that_over_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        built(cache.path(), "v1.36.4");
        let mut environment = Environment {
            vk_control_plane: Some("/ours".into()),
            kubebuilder_assets: Some("/kubebuilder".into()),
            cache: Some(cache.path().to_owned()),
        };
        assert_eq!(Programs::find_in(&environment).unwrap().folder, Path::new("/ours"));
        environment.vk_control_plane = None;
        assert_eq!(Programs::find_in(&environment).unwrap().folder, Path::new("/kubebuilder"));
        environment.kubebuilder_assets = None;
        assert!(Programs::find_in(&environment).unwrap().folder.ends_with("v1.36.4"));
    }

    #[test]
    fn an_empty_cache_is_an_error_that_says_what_to_do() {
        let cache = tempfile::tempdir().unwrap();
        let environment = Environment { cache: Some(cache.path().to_owned()), ..Environment::default() };
        let message = Programs::find_in(&environment).unwrap_err().to_string();
        assert!(message.contains("cannot find `etcd`"), "{message}");
        assert!(message.contains("make control-plane"), "{message}");
    }

    #[test]
    fn a_missing_binary_is_named_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs { folder: folder.path().to_owned(), named_by: "VK_CONTROL_PLANE" };
        let message = programs.program("kube-scheduler").unwrap_err().to_string();
        assert!(message.contains("cannot find `kube-scheduler`"), "{message}");
        assert!(message.contains("named by VK_CONTROL_PLANE"), "{message}");
    }
}
