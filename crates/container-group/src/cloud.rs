//! What the API of a cloud needs: an HTTP client with limits, request signing, credentials that are renewed in time, and errors
//! with a class.
//!
//! A call is a [`Request`] that is signed by a [`sign::Scheme`], anew for each attempt, and sent by a [`Client`] to an
//! [`Endpoint`]. The outcome is a [`Response`] or an [`Error`], whose [`Class`] decides what the engine does next. Nothing
//! here retries, and nothing limits the rate: that is up to the caller.
//!
//! Values of parameters, headers and answers may be secret: pods' files and environment variables travel in them. `Debug`
//! never shows them, nothing is logged of them, and texts of the cloud pass a filter before they become part of an error.

pub mod alibaba;
pub mod client;
pub mod credentials;
pub mod error;
mod redaction;
pub mod request;
pub mod sign;

pub use self::{
    client::{Client, Endpoint, Limits, Response},
    credentials::{CachedCredentials, CredentialSource, Credentials},
    error::{Class, Error, Result},
    request::{Effect, Request},
};
