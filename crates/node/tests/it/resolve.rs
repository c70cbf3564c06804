//! What pods refer to, read from a real API server with the rights of a node.

mod container;
mod desk;
mod limits;
mod on_demand;
mod token;
mod volume;
