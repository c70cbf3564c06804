//! Emulators of clouds, and the SDKs of their vendors as oracles.

pub mod eci;
pub mod vendor;
