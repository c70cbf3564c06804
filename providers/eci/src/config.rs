//! The configuration of the provider: YAML, or the TOML file of the Go provider.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr};

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use vk_container_group::{
    backend::Rate,
    cloud::{Credentials, Endpoint, alibaba::CredentialMode, client::PlainHttp},
    engine::FileUpdates,
    plan::policy::Choices,
};
use vk_provider::{
    Config, Error, Quantity, Result,
    config::{self, ConfigAlias},
};

use crate::fields::FIELDS;

/// The environment variables of the Go provider.
pub(crate) const VARIABLES: [ConfigAlias; 9] = [
    ConfigAlias::text("ECI_REGION", "region"),
    ConfigAlias::text("ECI_ACCESS_KEY", "accessKey"),
    ConfigAlias::text("ECI_SECRET_KEY", "secretKey"),
    ConfigAlias::text("ECI_SECURITY_GROUP", "securityGroup"),
    ConfigAlias::list("ECI_VSWITCH", "vSwitches"),
    ConfigAlias::text("ECI_CLUSTER_NAME", "clusterName"),
    ConfigAlias::text("ECI_QUOTA_CPU", "capacity.cpu"),
    ConfigAlias::text("ECI_QUOTA_MEMORY", "capacity.memory"),
    ConfigAlias::text("ECI_QUOTA_POD", "capacity.pods"),
];

/// The keys of the Go provider's file.
const TOML_KEYS: [ConfigAlias; 8] = [
    ConfigAlias::text("Region", "region"),
    ConfigAlias::list("VSwitch", "vSwitches"),
    ConfigAlias::text("SecureGroup", "securityGroup"),
    ConfigAlias::text("ClusterName", "clusterName"),
    ConfigAlias::text("CPU", "capacity.cpu"),
    ConfigAlias::text("Memory", "capacity.memory"),
    ConfigAlias::text("Pods", "capacity.pods"),
    ConfigAlias::ignored("OperatingSystem"),
];

/// Subnets that a group can name.
const MAX_V_SWITCHES: usize = 10;
/// Security groups that a group can have.
const MAX_SECURITY_GROUPS: usize = 5;
/// The node's resources if nothing is configured, as in the Go provider.
const DEFAULT_CAPACITY: [(&str, &str); 3] = [("cpu", "1000"), ("memory", "4Ti"), ("pods", "1000")];
/// Calls per second if nothing is configured.
const DEFAULT_RATE: Rate = Rate { per_second: 10.0, burst: 20.0 };

/// The configuration, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The region.
    pub(crate) region: String,
    /// The subnets of the groups, in the order of preference.
    pub(crate) v_switches: Vec<String>,
    /// Whether the order is mixed for each pod.
    pub(crate) is_random: bool,
    /// The security group, or several.
    pub(crate) security_group: String,
    /// The cluster's name in the account.
    pub(crate) cluster_name: Option<String>,
    /// The resource group of the groups.
    pub(crate) resource_group: Option<String>,
    /// Where credentials come from.
    pub(crate) credentials: CredentialSettings,
    /// The name servers of the cluster.
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// The most that the node offers.
    pub(crate) capacity: BTreeMap<String, Quantity>,
    /// Tags of every group.
    pub(crate) tags: Vec<(String, String)>,
    /// The rate of calls.
    pub(crate) rate: Rate,
    /// What groups cost.
    pub(crate) prices: Prices,
    /// What becomes of fields that can be ignored or refused.
    pub(crate) fields: Choices,
    /// What becomes of files that change.
    pub(crate) file_updates: FileUpdates,
    /// The API's address.
    pub(crate) endpoint: Endpoint,
}

/// Where credentials come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct CredentialSettings {
    /// Which sources are asked.
    pub(crate) mode: CredentialMode,
    /// The access key of the configuration.
    pub(crate) access_key: Option<Credentials>,
    /// The name of the profile.
    pub(crate) profile: Option<String>,
    /// The name of the instance's role.
    pub(crate) role_name: Option<String>,
}

/// What groups cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Prices {
    /// Nobody asks.
    #[default]
    Off,
    /// The service says it.
    Cloud,
    /// List prices of the configuration.
    List(PriceList),
}

/// Prices per hour.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PriceList {
    /// Of a CPU.
    pub(crate) cpu_hour: f64,
    /// Of a GiB of memory.
    #[serde(rename = "memoryGiBHour")]
    pub(crate) memory_gib_hour: f64,
    /// `USD`, `CNY`, ...
    pub(crate) currency: String,
}

/// The keys as they are written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Keys {
    #[serde(default)]
    region: String,
    #[serde(default)]
    v_switches: Vec<String>,
    #[serde(default)]
    spread: Spread,
    #[serde(default)]
    security_group: String,
    #[serde(default)]
    cluster_name: Option<String>,
    #[serde(default)]
    resource_group: Option<String>,
    #[serde(default)]
    credentials: CredentialMode,
    #[serde(default)]
    access_key: Option<String>,
    #[serde(default)]
    secret_key: Option<SecretText>,
    #[serde(default)]
    profile: Option<String>,
    #[serde(default)]
    role_name: Option<String>,
    #[serde(default, rename = "clusterDNS")]
    cluster_dns: Vec<IpAddr>,
    #[serde(default)]
    capacity: BTreeMap<String, Quantity>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    budget: Option<BudgetKeys>,
    #[serde(default)]
    prices: Value,
    #[serde(default)]
    fields: Choices,
    #[serde(default)]
    file_updates: FileUpdates,
    #[serde(default)]
    endpoint: Option<String>,
}

/// The order of the subnets.
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Spread {
    /// As written.
    #[default]
    Ordered,
    /// Another for each pod.
    Random,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BudgetKeys {
    requests_per_second: f64,
    burst: Option<f64>,
}

/// A text that is not dumped.
struct SecretText(SecretString);

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(SecretString::from(text)))
    }
}

/// The items of a list with commas between them.
pub(crate) fn split(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

// === impl Settings ===

impl Settings {
    /// Reads and checks the configuration.
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let keys: Option<Keys> = config.parse_with_toml(&TOML_KEYS)?;
        let place = config.path().map_or_else(
            || "the configuration of provider eci".to_owned(),
            |path| format!("provider config {}", path.display()),
        );
        let invalid = |text: String| Error::invalid(format!("{place}: {text}"));
        let keys = keys.ok_or_else(|| {
            invalid("there is none: region, vSwitches and securityGroup are required".to_owned())
        })?;
        keys.checked().map_err(invalid)
    }
}

// === impl Keys ===

impl Keys {
    /// The settings, or what is wrong with them.
    fn checked(self) -> Result<Settings, String> {
        let missing: Vec<&str> = [
            ("region", self.region.is_empty()),
            ("vSwitches", self.v_switches.is_empty()),
            ("securityGroup", self.security_group.is_empty()),
        ]
        .into_iter()
        .filter_map(|(key, is_missing)| is_missing.then_some(key))
        .collect();
        if !missing.is_empty() {
            return Err(format!("{} must be set", missing.join(", ")));
        }
        let is_region =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        if !self.region.chars().all(is_region) {
            return Err(format!("region {:?} is not the id of a region, such as cn-hangzhou", self.region));
        }
        if self.v_switches.len() > MAX_V_SWITCHES {
            return Err(format!(
                "{} vSwitches: at most {MAX_V_SWITCHES} are possible",
                self.v_switches.len()
            ));
        }
        if split(&self.security_group).len() > MAX_SECURITY_GROUPS {
            return Err(format!("securityGroup: at most {MAX_SECURITY_GROUPS} are possible"));
        }
        let mut seen = std::collections::BTreeSet::new();
        if let Some(twice) = self.v_switches.iter().find(|id| !seen.insert(id.as_str())) {
            return Err(format!("vSwitches: {twice} is there twice"));
        }
        self.fields.check(&FIELDS)?;
        let endpoint = match &self.endpoint {
            Some(text) => Endpoint::parse(text, PlainHttp::Loopback).map_err(|error| error.to_string())?,
            None => {
                Endpoint::parse(&format!("https://eci.{}.aliyuncs.com", self.region), PlainHttp::Loopback)
                    .map_err(|error| error.to_string())?
            }
        };
        Ok(Settings {
            credentials: self.credentials()?,
            capacity: self.capacity()?,
            rate: self.rate()?,
            prices: self.prices()?,
            tags: self.tags()?,
            fields: self.fields,
            file_updates: self.file_updates,
            is_random: self.spread == Spread::Random,
            region: self.region,
            v_switches: self.v_switches,
            security_group: self.security_group,
            cluster_name: self.cluster_name.filter(|name| !name.is_empty()),
            resource_group: self.resource_group.filter(|name| !name.is_empty()),
            cluster_dns: self.cluster_dns,
            endpoint,
        })
    }

    fn credentials(&self) -> Result<CredentialSettings, String> {
        let access_key = match (&self.access_key, &self.secret_key) {
            (Some(id), Some(SecretText(secret))) => {
                Some(Credentials::new(id, secret.expose_secret().to_owned()))
            }
            (None, None) => None,
            (Some(_), None) => return Err("accessKey needs secretKey (ECI_SECRET_KEY)".to_owned()),
            (None, Some(_)) => return Err("secretKey needs accessKey (ECI_ACCESS_KEY)".to_owned()),
        };
        let (mode, profile, role_name) = (self.credentials, self.profile.clone(), self.role_name.clone());
        Ok(CredentialSettings { mode, access_key, profile, role_name })
    }

    fn capacity(&self) -> Result<BTreeMap<String, Quantity>, String> {
        let mut capacity = BTreeMap::new();
        for (name, amount) in DEFAULT_CAPACITY {
            let amount: Quantity = amount.parse().map_err(|error| format!("capacity.{name}: {error}"))?;
            capacity.insert(name.to_owned(), amount);
        }
        capacity.extend(self.capacity.iter().map(|(name, amount)| (name.clone(), *amount)));
        for (name, amount) in &capacity {
            let is_resource = ["cpu", "memory", "pods", "ephemeral-storage"].contains(&name.as_str());
            if !is_resource && !name.contains('/') {
                return Err(format!(
                    "capacity.{name}: there is no such resource; cpu, memory and pods are usual"
                ));
            }
            if amount.is_negative() {
                return Err(format!("capacity.{name}: {amount} is negative"));
            }
        }
        Ok(capacity)
    }

    fn rate(&self) -> Result<Rate, String> {
        let Some(BudgetKeys { requests_per_second, burst }) = self.budget else { return Ok(DEFAULT_RATE) };
        let burst = burst.unwrap_or_else(|| (2.0 * requests_per_second).max(1.0));
        if !(requests_per_second.is_finite() && requests_per_second > 0.0) {
            return Err(format!("budget.requestsPerSecond: {requests_per_second} is not a rate"));
        }
        if !(burst.is_finite() && burst >= 1.0) {
            return Err(format!("budget.burst: {burst} is less than one call"));
        }
        Ok(Rate { per_second: requests_per_second, burst })
    }

    fn prices(&self) -> Result<Prices, String> {
        let list = match &self.prices {
            // `off` is a boolean in YAML.
            Value::Null | Value::Bool(false) => return Ok(Prices::Off),
            Value::String(text) if text == "off" => return Ok(Prices::Off),
            Value::String(text) if text == "cloud" => return Ok(Prices::Cloud),
            list @ Value::Object(_) => PriceList::deserialize(list)
                .map_err(|error| format!("prices: {}", config::explain(&error.to_string())))?,
            _ => return Err("prices: write cpuHour, memoryGiBHour and currency, or cloud, or off".to_owned()),
        };
        let is_price = |price: f64| price.is_finite() && price >= 0.0;
        if !is_price(list.cpu_hour) || !is_price(list.memory_gib_hour) {
            return Err("prices: cpuHour and memoryGiBHour are amounts of money".to_owned());
        }
        Ok(Prices::List(list))
    }

    /// The user's tags, by the rules of the service.
    fn tags(&self) -> Result<Vec<(String, String)>, String> {
        for (key, value) in &self.tags {
            let begins = |prefix: &str| key.to_lowercase().starts_with(prefix);
            if begins("aliyun") || begins("acs:") || value.to_lowercase().starts_with("acs:") {
                return Err(format!("tags.{key}: the service reserves the prefixes aliyun and acs:"));
            }
            if [key, value].iter().any(|text| text.contains("http://") || text.contains("https://")) {
                return Err(format!("tags.{key}: the service allows no http:// and no https:// in tags"));
            }
        }
        Ok(self.tags.clone().into_iter().collect())
    }
}
