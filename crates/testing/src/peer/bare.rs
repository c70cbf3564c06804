//! A machine without a runtime, for what brings its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Host, House, Image, Machine, image, make_folder};

/// A machine, and namespaces in which to run something there. Dropping it ends everything in them, and gives the machine back.
#[derive(Debug)]
pub struct Bare {
    house: House,
    machine: Machine,
}

// === impl Bare ===

impl Bare {
    /// Takes a machine.
    pub async fn start(machine: Machine) -> Self {
        Self { house: House::build(machine.folder()).await, machine }
    }

    /// Writes an archive with images, and returns its path.
    pub fn archive(&self, images: &[Image]) -> PathBuf {
        let folder = self.machine.folder().join("images");
        make_folder(&folder);
        image::archive(&folder, images)
    }
}

impl Host for Bare {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn beside(&self, program: &Path) -> Command {
        self.house.command(program)
    }
}
