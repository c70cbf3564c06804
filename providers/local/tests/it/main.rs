//! Integration tests of the provider `local` with real containers.

mod backend;
mod image;
mod network;
mod shim;
