//! A container as the OCI runtime wants it.
