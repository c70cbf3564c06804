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

    /// Ends everything that runs, and takes away everything that was mounted: what a power failure leaves is what is on the disk.
    pub async fn reboot(&mut self) {
        let again = House::build(self.machine.folder()).await;
        drop(std::mem::replace(&mut self.house, again));
    }

    /// The first process of its namespaces, as it is numbered out here.
    pub fn inside(&self) -> nix::unistd::Pid {
        self.house.inside()
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
