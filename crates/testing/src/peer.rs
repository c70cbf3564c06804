//! A container runtime, a kubelet and a registry of a test's own, on the machine that the test runs on. Needs root.
//!
//! A [`Machine`] is what programs of that kind need outside of any namespace: a bridge, a subnet, a control group, a folder. Each has a
//! number, from which all its names come, so that several live beside each other. [`Containerd`] runs on one, in mount and PID
//! namespaces of its own, and so does a real [`Kubelet`] beside it: whatever they start or mount ends with them. What they leave
//! outside of those is removed when the machine is dropped, or by the next run that takes its number when this one is killed.
//!
//! Everything here panics when it cannot do what it is asked to: a test can go no further then.

mod bare;
mod cgroup;
mod chains;
pub mod containerd;
mod house;
pub mod image;
pub mod kubelet;
mod machine;
mod registry;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub use self::{
    bare::Bare,
    containerd::Containerd,
    house::{House, Resident},
    image::Image,
    kubelet::Kubelet,
    machine::Machine,
    registry::Registry,
};

/// Where a node's agent runs.
pub trait Host {
    /// Writes an archive with images, and returns its path.
    fn archive(&self, images: &[Image]) -> PathBuf {
        let folder = self.machine().folder().join("images");
        make_folder(&folder);
        image::archive(&folder, images)
    }

    /// The machine that it is on.
    fn machine(&self) -> &Machine;

    /// The namespaces in which it is used.
    fn house(&self) -> &House;

    /// A command that runs there. It ends with the namespaces at the latest.
    fn beside(&self, program: &Path) -> Command {
        self.house().command(program)
    }

    /// The first process in the namespaces, as it is numbered out here.
    fn inside(&self) -> u32 {
        self.house().inside()
    }
}

/// Runs a program that must succeed, and returns what it printed.
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

/// Runs a program to its end, however that is.
pub(crate) fn attempt(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| {
        panic!("cannot run {program}: {error}; `make setup` installs what tests need")
    })
}

/// Writes a file whose folder is there.
pub(crate) fn write(path: &Path, contents: impl AsRef<[u8]>) {
    std::fs::write(path, contents).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

/// Makes a folder with those above it.
pub(crate) fn make_folder(path: &Path) {
    std::fs::create_dir_all(path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
}
