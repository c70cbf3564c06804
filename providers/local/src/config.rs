//! The provider's configuration.
