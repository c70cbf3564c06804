//! An emulator of Alibaba Cloud ECI: an HTTP server on loopback that knows only the wire protocol.
//!
//! It is strict: what the vendor's models do not know, or what exceeds the vendor's limits, is refused with the vendor's codes, and
//! every signature is verified. It is stateful, counts calls, bills groups, limits rates, and has every fault on demand.
//! Containers are simulated, or processes of this host.

mod account;
mod calls;
mod cloud;
mod control;
mod emulator;
mod error;
mod exec;
mod fault;
mod http;
mod journal;
mod limits;
mod process;
mod rate;
mod schema;
mod server;
mod signature;

pub use self::{
    account::AccessKey,
    cloud::{BillingRecord, Script, Settings, StockCheck, Timing},
    control::GroupSummary,
    emulator::{CallCount, Containers, Options, SentRequest},
    error::ApiError,
    fault::{Fault, Rule},
    rate::Limit,
    server::EciEmulator,
};
