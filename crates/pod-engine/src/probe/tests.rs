//! Probes against real servers, and the probes of pods on a scripted runtime.

mod grpc;
mod http;
mod pod_probes;
mod runtime;
mod server;

pub(crate) use self::{
    runtime::{RecordedEvents, Script, ScriptedRuntime},
    server::{Server, text},
};
