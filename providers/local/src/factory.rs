//! Opens the provider from its configuration.

/// The factory of the provider `local`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFactory;
