//! Pods on container groups of Alibaba Cloud ECI.
//!
//! The engine of [`vk_container_group`] decides what happens when; this crate knows the service.
//!
//! | module | what it does |
//! |---|---|
//! | `config` | reads the configuration |
//! | `api` | typed calls, tolerant of what the service answers |
//! | `fields` | what becomes of each field of a pod |
//! | `translate` | from a pod to a request |
//! | `observe` | from an answer to what the engine understands |
//! | `stream` | commands over a WebSocket |
//! | `connection` | what calls need: credentials, endpoint, HTTP client |
//! | `backend` | the interface of the engine |
//! | `explanation`, `doctor` | the commands `explain-pod` and `doctor` |
//! | `factory` | opens the provider, and the list of groups for the command `groups` |

mod api;
mod backend;
mod config;
mod connection;
mod doctor;
mod explanation;
mod factory;
mod fields;
mod observe;
mod stream;
mod translate;

pub use self::factory::EciFactory;
