//! Container logs: the runtime's format, read with every option.
