//! The node and pod controllers against a real API server. These tests need the control plane.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod adopt;
mod drift;
mod event;
mod foreign;
mod harness;
mod holder;
mod identity;
mod kubelet;
mod loss;
mod manager;
mod outage;
mod pods;
mod quiet;
mod ready;
mod register;
mod resolve;
mod scripted;
mod settings;
mod stop;
mod taint;
