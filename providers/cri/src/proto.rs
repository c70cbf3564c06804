//! Messages and clients generated from `proto/cri.proto`.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery, clippy::use_self)]

use std::fmt;

tonic::include_proto!("runtime.v1");

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig").field("username", &self.username).finish_non_exhaustive()
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue").field("key", &self.key).finish_non_exhaustive()
    }
}
