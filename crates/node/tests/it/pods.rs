//! The pod controller against a real API server, with pods that are bound to a node by hand.

mod admission;
mod audit;
mod bare;
mod create;
mod deletion;
mod fence;
mod foreign;
mod life;
mod missed;
mod namesake;
mod nonsense;
mod original;
mod outage;
mod puppet;
mod references;
mod resize;
mod restart;
mod spy;
mod stage;
mod streamed;
mod told;
mod update;
mod worker;
