//! What the configurations of providers on this engine are written with.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::Value;
use vk_provider::{Config, Error, Quantity, Result, config::explain};

use crate::machine;

/// What of the machine is not for pods, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Reserved {
    cpu: Option<Amount>,
    memory: Option<Amount>,
    ephemeral_storage: Option<Amount>,
}

/// An amount with or without quotes, not less than nothing.
#[derive(Clone, Copy, Debug)]
pub struct Amount(pub Quantity);

/// A duration as people write it, more than none.
#[derive(Clone, Copy, Debug)]
pub struct Pause(pub Duration);

/// Reads a configuration as it is written and lets it be checked. `Invalid` says where the mistake is.
pub fn read<W: DeserializeOwned + Default, S>(
    config: &Config,
    check: impl FnOnce(W) -> Result<S, String>,
) -> Result<S> {
    let place = match config.path() {
        Some(path) => format!("provider config {}", path.display()),
        None => "providerConfig".to_owned(),
    };
    let written = match config.parse::<Value>()?.unwrap_or_default() {
        Value::Null => Ok(W::default()),
        // A list would be read as the keys' values in their order.
        value if !value.is_object() => Err("keys with values are expected, such as `maxPods: 50`".to_owned()),
        value => serde_path_to_error::deserialize(value).map_err(|error| {
            let (path, why) = (error.path().to_string(), explain(&error.inner().to_string()));
            if path == "." { why } else { format!("{path}: {why}") }
        }),
    };
    written.and_then(check).map_err(|why| Error::invalid(format!("{place}: {why}")))
}

/// How many pods a node takes: 110 as with a kubelet, or another number.
pub fn max_pods(written: Option<i64>) -> Result<i64, String> {
    match written.unwrap_or(110) {
        pods if pods < 1 => Err(format!("maxPods: {pods} is no number of pods: write 1 or more")),
        pods => Ok(pods),
    }
}

/// How many pulls run at a time: 5, another number, or 0 for no limit, which is `None`.
pub fn parallel_pulls(written: Option<i64>) -> Result<Option<usize>, String> {
    match written.unwrap_or(5) {
        0 => Ok(None),
        pulls => usize::try_from(pulls).map(Some).map_err(|_| {
            format!("parallelPulls: {pulls} is no number of pulls: write 1 or more, or 0 for no limit")
        }),
    }
}

/// A path that means the same to every process: one that begins in a working directory is no place.
pub fn absolute(key: &str, path: Option<PathBuf>, default: &str) -> Result<PathBuf, String> {
    let path = path.unwrap_or_else(|| Path::new(default).to_owned());
    if path.is_absolute() {
        return Ok(path);
    }
    Err(format!("{key}: {} is not an absolute path: write one such as {default}", path.display()))
}

// === impl Reserved ===

impl From<Reserved> for machine::Reserved {
    fn from(written: Reserved) -> Self {
        let amount = |amount: Option<Amount>| amount.map(|Amount(quantity)| quantity);
        Self {
            cpu: amount(written.cpu),
            memory: amount(written.memory),
            ephemeral_storage: amount(written.ephemeral_storage),
        }
    }
}

// === impl Amount ===

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            other => return Err(D::Error::custom(format!("{other} is not a quantity"))),
        };
        let amount: Result<Quantity, _> = text.trim().parse();
        match amount {
            Ok(amount) if !amount.is_negative() => Ok(Self(amount)),
            Ok(_) => Err(D::Error::custom(format!("{text:?} is less than nothing"))),
            Err(_) => Err(D::Error::custom(format!(
                "{text:?} is not a quantity: write a number with an optional suffix, such as 250m, 2 or 64Mi"
            ))),
        }
    }
}

// === impl Pause ===

impl<'de> Deserialize<'de> for Pause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let read = vk_provider::duration::parse(&text).ok().filter(|read| !read.is_zero());
        read.map(Self).ok_or_else(|| {
            D::Error::custom(format!("{text:?} is not a duration: write one such as 30s, 5m or 1h30m"))
        })
    }
}
