//! The provider `local` with real containers.

mod image;
mod network;
mod shim;
