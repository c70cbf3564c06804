//! Who calls, and whether they may.

pub mod attributes;
mod cache;
pub mod gate;
pub mod review;
pub mod user;

pub use self::{
    attributes::Attributes,
    gate::{Gate, Lifetimes},
    review::{ApiServer, Reviews},
    user::User,
};
