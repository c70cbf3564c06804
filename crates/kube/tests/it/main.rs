//! The client against a real API server.

mod csr;
