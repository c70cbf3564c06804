//! The pod controller against a real API server, with pods that are bound to a node by hand.

mod bare;
mod create;
mod deletion;
mod foreign;
mod life;
mod namesake;
mod nonsense;
mod original;
mod outage;
mod puppet;
mod restart;
mod spy;
mod stage;
mod update;
mod worker;
