//! The part of HTTP/1.1 that the API needs. A server of our own, because faults break the rules of HTTP, and because the vendor's
//! SDK puts whole files into URLs, which are longer than other servers accept.

mod parameters;
mod request;
mod response;

pub(crate) use self::{
    parameters::{decode, encode, encode_pairs, pairs},
    request::HttpRequest,
    response::{Delivery, HttpResponse},
};
