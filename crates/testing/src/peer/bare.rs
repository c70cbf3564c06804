//! A machine without a runtime, for what brings its own.

use super::{Host, House, Machine};

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
}

impl Host for Bare {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn house(&self) -> &House {
        &self.house
    }
}
