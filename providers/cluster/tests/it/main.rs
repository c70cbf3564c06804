//! The provider against real API servers.

mod admission;
mod reflect;
