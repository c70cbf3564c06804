//! The directories of a pod: volumes, hosts file, termination messages.
