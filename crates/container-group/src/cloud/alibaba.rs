//! Alibaba Cloud: signed calls of its RPC APIs, its error codes, and where its credentials come from.

mod api;
mod credential_chain;
mod error_code;
mod instance_role;
mod profile;
mod role_token;
#[cfg(test)]
mod tests;

pub use self::{
    api::{Api, Call},
    credential_chain::{CredentialChain, CredentialMode, CredentialOptions, Environment},
};
