//! Clients other than kubectl, through the real API server. They offer other protocols and read responses differently.

mod kube_rs;
mod python;

use super::{
    Served,
    kubectl_commands::{WAYS, served},
};
