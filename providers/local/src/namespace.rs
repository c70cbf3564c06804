//! Namespaces that stay without a process.
