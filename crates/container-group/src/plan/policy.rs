//! What becomes of each field of a pod on a cloud.
//!
//! Each cloud has one `const` [`PolicyTable`] with a [`Row`] for every field of the API types in [`COVERED_TYPES`]. The translator of the
//! cloud takes refusals and warnings from [`PolicyTable::review`], `explain-pod` shows the rows, and tests hold the table against the API
//! types ([`PolicyTable::problems`]) and against the translator ([`sample`]).
//!
//! ```
//! use vk_container_group::plan::policy::{Literal, PolicyTable, Row};
//!
//! const FIELDS: PolicyTable = PolicyTable {
//!     cloud: "ECI",
//!     rows: &[
//!         Row::native("PodSpec.restartPolicy", "RestartPolicy"),
//!         Row::native("PodSpec.containers", "Container.N"),
//!         Row::refused("PodSpec.hostNetwork", "a group has a network of its own: remove it").unless(&[Literal::Bool(false)]),
//!         Row::elsewhere("PodSpec.affinity", "handled by the scheduler"),
//!         Row::choice_emulated(
//!             "Container.startupProbe",
//!             "liveness probe starts later; a slow start looks like a hang",
//!             "ECI has no startup probes: use initialDelaySeconds of the liveness probe",
//!         ),
//!         // A field below one of those types may have a row of its own. It is asked instead of the row above it.
//!         Row::native("Probe.httpGet", "HttpGet"),
//!         Row::refused("Probe.httpGet.httpHeaders", "ECI's probes send no headers: use exec"),
//!     ],
//! };
//! ```

pub mod api_fields;
mod choice;
mod markdown;
mod review;
#[cfg(any(test, feature = "fake"))]
pub mod sample;
mod table_check;

pub use self::{
    api_fields::COVERED_TYPES,
    choice::{Choice, Choices},
    review::{FieldReport, Outcome, Review},
};

/// The field policy of a cloud.
#[derive(Clone, Copy, Debug)]
pub struct PolicyTable {
    /// The cloud's name, for messages.
    pub cloud: &'static str,
    /// One row for each field.
    pub rows: &'static [Row],
}

/// What becomes of one field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The API type and the field, such as `Container.livenessProbe`, or `Probe.httpGet.httpHeaders` for a field of a field.
    pub field: &'static str,
    /// What becomes of it.
    pub policy: Policy,
    /// For users: the cloud's parameter, how it is emulated, why it is ignored, or what to write instead.
    pub result: &'static str,
    /// For a choice: what to write instead, if it is refused.
    pub refusal: &'static str,
    /// Values that ask for nothing, such as the API server's defaults: a field with such a value counts as not set.
    pub harmless: &'static [Literal],
    /// A value of the field as JSON, for [`sample`]s, where the general one is not valid.
    pub sample: Option<&'static str>,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// The cloud does it.
    Native,
    /// Done by other means of the cloud, to the same effect.
    Emulated,
    /// Not done, with a warning.
    Ignored,
    /// A pod with it does not run.
    Refused,
    /// Not the cloud's: done by the scheduler, a controller or the core.
    Elsewhere,
    /// Emulated with a difference that is a warning, or refused: the configuration says which.
    EmulatedOrRefused,
    /// Ignored with a warning, or refused: the configuration says which.
    IgnoredOrRefused,
}

/// A value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Literal {
    /// A boolean.
    Bool(bool),
    /// A number.
    Int(i64),
    /// A text.
    Text(&'static str),
    /// An object without fields.
    Empty,
}

// === impl PolicyTable ===

impl PolicyTable {
    /// The row of a field.
    pub fn row(&self, field: &str) -> Option<&'static Row> {
        self.rows.iter().find(|row| row.field == field)
    }

    /// The rows that the configuration decides about.
    pub fn choices(&self) -> impl Iterator<Item = &'static Row> {
        self.rows.iter().filter(|row| row.policy.is_choice())
    }
}

// === impl Row ===

impl Row {
    const fn new(field: &'static str, policy: Policy, result: &'static str, refusal: &'static str) -> Self {
        Self { field, policy, result, refusal, harmless: &[], sample: None }
    }

    /// The cloud does it, with this parameter.
    pub const fn native(field: &'static str, parameter: &'static str) -> Self {
        Self::new(field, Policy::Native, parameter, "")
    }

    /// Done by other means, to the same effect.
    pub const fn emulated(field: &'static str, how: &'static str) -> Self {
        Self::new(field, Policy::Emulated, how, "")
    }

    /// Not done, for this reason.
    pub const fn ignored(field: &'static str, why: &'static str) -> Self {
        Self::new(field, Policy::Ignored, why, "")
    }

    /// Refused: why, and what to write instead.
    pub const fn refused(field: &'static str, instead: &'static str) -> Self {
        Self::new(field, Policy::Refused, instead, "")
    }

    /// Done by someone else.
    pub const fn elsewhere(field: &'static str, by: &'static str) -> Self {
        Self::new(field, Policy::Elsewhere, by, "")
    }

    /// Emulated with a warning, or refused.
    pub const fn choice_emulated(field: &'static str, how: &'static str, instead: &'static str) -> Self {
        Self::new(field, Policy::EmulatedOrRefused, how, instead)
    }

    /// Ignored with a warning, or refused.
    pub const fn choice_ignored(field: &'static str, why: &'static str, instead: &'static str) -> Self {
        Self::new(field, Policy::IgnoredOrRefused, why, instead)
    }

    /// Values that ask for nothing.
    #[must_use]
    pub const fn unless(mut self, harmless: &'static [Literal]) -> Self {
        self.harmless = harmless;
        self
    }

    /// A value for samples, as JSON.
    #[must_use]
    pub const fn sample(mut self, json: &'static str) -> Self {
        self.sample = Some(json);
        self
    }

    /// The name of the field without its type: what the configuration may call it.
    pub fn name(&self) -> &'static str {
        self.field.rsplit('.').next().unwrap_or(self.field)
    }
}

// === impl Policy ===

impl Policy {
    /// Whether the configuration decides.
    pub fn is_choice(self) -> bool {
        matches!(self, Self::EmulatedOrRefused | Self::IgnoredOrRefused)
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Emulated => "emulated",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
            Self::Elsewhere => "elsewhere",
            Self::EmulatedOrRefused | Self::IgnoredOrRefused => "choice",
        }
    }
}

// === impl Literal ===

impl Literal {
    fn matches(self, value: &serde_json::Value) -> bool {
        match self {
            Self::Bool(expected) => value.as_bool() == Some(expected),
            Self::Int(expected) => value.as_i64() == Some(expected),
            Self::Text(expected) => value.as_str() == Some(expected),
            Self::Empty => value.as_object().is_some_and(serde_json::Map::is_empty),
        }
    }
}

#[cfg(test)]
mod tests;
