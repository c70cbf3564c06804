//! A container runtime in memory, with faults.
