//! Exec, attach and port-forward as a kubelet serves them: the sub-protocols of real clients over SPDY and WebSocket, for servers and
//! clients.
//!
//! The HTTP server parses a request ([`exec::Request`], [`forward::Request`]), answers with its `switching()`, and passes the upgraded
//! connection and the provider's session to [`exec::serve`] or [`forward::serve`]. Slow readers cause back-pressure, no byte is lost,
//! and a session ends when its client disconnects.

mod activity;
pub mod client;
pub mod exec;
pub mod forward;
pub mod limits;
mod negotiation;
pub mod proxy;
mod rejected_upgrade;
mod spdy;
mod stream;

pub use self::{
    limits::{SessionEnd, SessionLimits, SessionOutcome},
    rejected_upgrade::RejectedUpgrade,
};
