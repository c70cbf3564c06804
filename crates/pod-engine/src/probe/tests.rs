//! Probes against servers that are really there, and pods' probes on a runtime that does as it is told.

mod grpc;
mod pod;
mod runtime;
mod server;
mod web;

pub(crate) use self::{
    runtime::{Does, Runtime, Told},
    server::{Server, text},
};
