//! SPDY/3.1.
pub mod codec;
mod config;
mod connection;
mod driver;
mod error;
mod state;
mod stream;

pub use self::{
    codec::{Headers, Limits, ResetStatus, StreamId},
    config::{Config, KeepAlive},
    connection::{Connection, Incoming},
    driver::Driver,
    error::Error,
    stream::{Reader, Stream, Writer},
};
