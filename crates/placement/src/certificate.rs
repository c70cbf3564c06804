//! The certificates of the extender and of the webhook, in a Secret.
//!
//! The leader [creates and renews](Maintainer) them, every process [serves](follow) the current one, and clients verify it with the
//! [CAs](ca_bundle) in the Secret. kube-scheduler reads its CA once, when it starts, so a CA lives for ten years and a serving certificate, the
//! leaf, for 90 days.
//!
//! | key of the Secret | holds |
//! |---|---|
//! | `ca.crt` | the CAs that clients trust: the one that issues leaves, and during a rotation the next or the previous one |
//! | `ca.key` | the key of the one that issues leaves |
//! | `next-ca.key` | the key of the next one |
//! | `tls.crt`, `tls.key` | the leaf and its key |
//!
//! A rotation takes years. After two thirds of a CA's lifetime the next one joins the bundle, and both are trusted. The old one issues leaves
//! until 100 days before it expires, and stays in the bundle until then. So whoever has read the bundle trusts the leaves of the next
//! [`BUNDLE_VALIDITY`] at least.
//!
//! The extender accepts kube-scheduler only, by a [client certificate](client_certificate) of the same CA.
//!
//! If the Secret is damaged, only what is damaged is replaced. A CA whose key is lost stays in the bundle while leaves of it may be valid. To
//! replace everything, because somebody may have read the keys, delete the Secret.

mod authority;
mod ca_bundle;
mod client;
mod contents;
mod follower;
mod leaf;
mod maintainer;
mod renewal;
mod served_names;
#[cfg(test)]
mod tests;
mod webhook_bundle;

use jiff::{SignedDuration, Timestamp};

pub use self::{
    ca_bundle::{CaBundleError, ca_bundle, issued_names},
    client::{ClientCertificate, ClientCertificateError, SCHEDULER, client_certificate, follow_cas},
    follower::follow,
    maintainer::Maintainer,
    served_names::{InvalidName, ServedNames},
};

/// The name of the Secret.
pub const SECRET: &str = "virtual-kubelet-placement-tls";

/// A bundle of CAs that was read verifies every leaf that is served within this time.
pub const BUNDLE_VALIDITY: SignedDuration = days(3 * 365);

/// The lifetime of a CA, from when it is created.
const CA_LIFETIME: SignedDuration = days(3652);
/// How long before that a CA is valid. Much, because a CA that is not valid yet by a clock that was set back would be replaced, and clients that
/// read their CA once would have to be restarted.
const CA_BACKDATE: SignedDuration = days(365);
/// How long before its end a CA stops issuing leaves: none of them outlives it.
const CA_RETIREMENT: SignedDuration = days(100);
/// The time that clients which watch the bundle have to learn of a CA before it issues leaves.
const CA_PUBLICATION: SignedDuration = days(1);
/// The lifetime of a leaf, from when it is issued.
const LEAF_LIFETIME: SignedDuration = days(90);
/// How long before that a leaf is valid, for clients whose clock is behind.
const LEAF_BACKDATE: SignedDuration = days(1);

const fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

/// A time that the calendar of certificates has, also if the clock shows nonsense.
fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.saturating_add(duration).unwrap_or(time)
}

/// See [`after`].
fn before(time: Timestamp, duration: SignedDuration) -> Timestamp {
    after(time, -duration)
}
