//! A container runtime, a kubelet and a registry on this host, separate from everything else that runs on it. Needs root.
//!
//! [`HostResources`] are the bridge, subnet, cgroup and folder that these programs need on the host. All their names come from one number, so
//! that several sets exist side by side. [`Containerd`] and a real [`Kubelet`] run in their own mount and PID [`Namespaces`]: processes and
//! mounts end with them. The resources are removed when they are dropped, or by the next run that takes the same number when this one is killed.
//!
//! Functions of this module panic on errors: a test cannot continue then.

mod bare;
mod cgroup;
pub mod containerd;
mod firewall;
pub mod image;
pub mod kubelet;
mod namespaces;
mod registry;
mod resources;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub use self::{
    bare::BareHost,
    containerd::Containerd,
    image::Image,
    kubelet::Kubelet,
    namespaces::{NamespacedProcess, Namespaces},
    registry::Registry,
    resources::HostResources,
};

/// A host on which the agent of a node runs.
pub trait Host {
    /// Writes an archive with images, and returns its path.
    fn archive(&self, images: &[Image]) -> PathBuf {
        let folder = self.resources().folder().join("images");
        make_folder(&folder);
        image::archive(&folder, images)
    }

    /// Its resources outside of the namespaces.
    fn resources(&self) -> &HostResources;

    /// Its namespaces.
    fn namespaces(&self) -> &Namespaces;

    /// A command that runs in the namespaces and ends with them at the latest.
    fn command(&self, program: &Path) -> Command {
        self.namespaces().command(program)
    }

    /// The process id, outside of the namespaces, of the first process in them.
    fn init_pid(&self) -> u32 {
        self.namespaces().init_pid()
    }
}

/// Runs a program that must succeed, and returns its output.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = attempt(program, args);
    assert!(
        output.status.success(),
        "{program} {}: {}{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program, which may fail.
pub(crate) fn attempt(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("run {program}: {error}; `dev/setup tests` installs what tests need"))
}

/// Writes a file in an existing folder.
pub(crate) fn write(path: &Path, contents: impl AsRef<[u8]>) {
    std::fs::write(path, contents).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}

/// Creates a folder and its parents.
pub(crate) fn make_folder(path: &Path) {
    std::fs::create_dir_all(path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
}
