//! Clients that are not kubectl, through the real API server: what they offer and how they read it differs from kubectl.

mod kube_rs;
mod python;

use super::{
    Served,
    verbs::{WAYS, served},
};
