//! Exec, attach and port-forward as a kubelet serves them: the sub-protocols that real clients speak, over SPDY and over
//! WebSocket, and the client's side of the same.
//!
//! The HTTP server reads a request ([`exec::Request`], [`forward::Request`]), answers with its `switching()`, and hands the
//! upgraded connection and the provider's session to [`exec::serve`] or [`forward::serve`]. Bytes wait where they
//! are when the other side is slow, none is lost, and a session ends when its client goes.

pub mod client;
pub mod exec;
pub mod forward;
pub mod limits;
mod meter;
mod negotiate;
pub mod proxy;
mod refusal;
mod spdy;
mod wire;

pub use self::{
    limits::{End, Limits, Outcome},
    refusal::Refusal,
};
