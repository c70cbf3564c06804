//! The annotations of the vendor's own virtual node: they mean the same here.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use vk_container_group::plan::Diagnostics;
use vk_provider::{Quantity, config::nearest};

use crate::{api::Parameters, config::split};

const VENDOR: &str = "k8s.aliyun.com/";
const MAX_V_SWITCHES: usize = 10;
const MAX_SECURITY_GROUPS: usize = 5;

/// The annotations whose value is a parameter of the service.
const PARAMETERS: [(&str, &str, Form); 15] = [
    ("eci-ram-role-name", "RamRoleName", Form::Text),
    ("eci-image-cache", "AutoMatchImageCache", Form::Flag),
    ("eci-image-snapshot-id", "ImageSnapshotId", Form::Text),
    ("eci-gpu-driver-version", "GpuDriverVersion", Form::Text),
    ("eci-spot-price-limit", "SpotPriceLimit", Form::Price),
    ("eci-spot-duration", "SpotDuration", Form::Number),
    ("eci-extra-ephemeral-storage", "EphemeralStorage", Form::Gibibytes),
    ("eci-with-eip", "AutoCreateEip", Form::Flag),
    ("eci-eip-instanceid", "EipInstanceId", Form::Text),
    ("eci-eip-bandwidth", "EipBandwidth", Form::Number),
    ("eip-bandwidth", "EipBandwidth", Form::Number),
    ("eci-eip-isp", "EipISP", Form::Text),
    ("eip-isp", "EipISP", Form::Text),
    ("eci-eip-common-bandwidth-package-id", "EipCommonBandwidthPackage", Form::Text),
    ("eip-common-bandwidth-package-id", "EipCommonBandwidthPackage", Form::Text),
];

/// The others.
const OTHERS: [&str; 8] = [
    "eci-vswitch",
    "eci-schedule-strategy",
    "eci-use-specs",
    "eci-instance-family",
    "eci-security-group",
    "eci-resource-group-id",
    "eci-spot-strategy",
    "eci-enable-ipv6",
];

/// Names of instance types by their number of CPUs.
const TYPE_SIZES: [(i64, &str); 10] = [
    (2, "large"),
    (4, "xlarge"),
    (8, "2xlarge"),
    (12, "3xlarge"),
    (16, "4xlarge"),
    (24, "6xlarge"),
    (32, "8xlarge"),
    (48, "12xlarge"),
    (64, "16xlarge"),
    (96, "24xlarge"),
];

/// The form of a value.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Text,
    Flag,
    Number,
    Price,
    Gibibytes,
}

/// What the annotations of a pod ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// The subnets, in the order of preference.
    pub(super) v_switches: Option<Vec<String>>,
    /// Whether the order of the subnets is another for each pod.
    pub(super) is_random: Option<bool>,
    /// The sizes, in the order of preference.
    pub(super) specs: Vec<Spec>,
    /// The security groups.
    pub(super) security_group: Option<String>,
    /// The resource group.
    pub(super) resource_group: Option<String>,
    /// Everything that is a parameter of the service.
    pub(super) parameters: Parameters,
}

/// A size by name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Spec {
    /// CPUs and memory: `2-4Gi`.
    Size {
        /// As it is written.
        text: String,
        /// CPUs.
        cpu: Quantity,
        /// Memory.
        memory: Quantity,
    },
    /// An instance type: `ecs.c6.xlarge`.
    InstanceType(String),
}

/// A size such as `2-4Gi` or `ecs.c6.xlarge`.
pub(crate) fn parse_spec(text: &str) -> Option<Spec> {
    if text.starts_with("ecs.") {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-');
        return text.chars().all(is_name).then(|| Spec::InstanceType(text.to_owned()));
    }
    let (cpu, memory) = text.split_once('-')?;
    let (cpu, memory): (Quantity, Quantity) = (cpu.parse().ok()?, memory.parse().ok()?);
    let is_size = cpu.to_milli() > 0 && memory.to_units() >= 1 << 20;
    is_size.then(|| Spec::Size { text: text.to_owned(), cpu, memory })
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { text, .. } | Self::InstanceType(text) => f.write_str(text),
        }
    }
}

// === impl Wishes ===

impl Wishes {
    /// Reads the annotations of a pod.
    pub(super) fn read(pod: &Pod, diagnostics: &mut Diagnostics) -> Self {
        let mut wishes = Self::default();
        for (key, value) in pod.metadata.annotations.iter().flatten() {
            let Some(name) = key.strip_prefix(VENDOR) else { continue };
            let field = format!("metadata.annotations[{key}]");
            if name.starts_with("eci-") || name.starts_with("eip-") {
                if let Some((_, parameter, form)) = PARAMETERS.iter().find(|(one, ..)| *one == name) {
                    wishes.set_parameter(parameter, *form, value.trim(), &field, diagnostics);
                } else if OTHERS.contains(&name) {
                    if let Err(why) = wishes.set(name, value.trim(), pod) {
                        diagnostics.refuse(field, why);
                    }
                } else {
                    diagnostics.warn(field, unknown(name));
                }
            }
        }
        wishes.check_spot(diagnostics);
        wishes
    }

    fn set(&mut self, name: &str, value: &str, pod: &Pod) -> Result<(), String> {
        let items = split(value);
        let at_most = |most: usize| match items.len() {
            0 => Err("the value is empty".to_owned()),
            count if count > most => Err(format!("{count} items; at most {most} are possible")),
            _ => Ok(()),
        };
        match name {
            "eci-vswitch" => {
                at_most(MAX_V_SWITCHES)?;
                self.v_switches = Some(items);
            }
            "eci-schedule-strategy" => {
                self.is_random = Some(match value {
                    "VSwitchOrdered" => false,
                    "VSwitchRandom" => true,
                    _ => return Err("write VSwitchOrdered or VSwitchRandom".to_owned()),
                });
            }
            "eci-use-specs" => {
                at_most(usize::MAX)?;
                for item in &items {
                    let spec = parse_spec(item).ok_or_else(|| {
                        format!("{item:?} is neither a size such as 2-4Gi nor an instance type such as ecs.c6.xlarge")
                    })?;
                    self.specs.push(spec);
                }
            }
            "eci-instance-family" => {
                at_most(usize::MAX)?;
                // Sizes that are named count before families.
                for item in &items {
                    self.specs.push(Spec::InstanceType(type_of_family(item, pod)?));
                }
            }
            "eci-security-group" => {
                at_most(MAX_SECURITY_GROUPS)?;
                self.security_group = Some(items.join(","));
            }
            "eci-resource-group-id" => self.resource_group = Some(value.to_owned()),
            "eci-spot-strategy" => match value {
                "NoSpot" | "SpotAsPriceGo" | "SpotWithPriceLimit" => {
                    self.parameters.set("SpotStrategy", value);
                }
                _ => return Err("write NoSpot, SpotAsPriceGo or SpotWithPriceLimit".to_owned()),
            },
            // The only one left: eci-enable-ipv6.
            _ => match value {
                "true" => self.parameters.set("Ipv6AddressCount", 1),
                "false" => {}
                _ => return Err("write \"true\" or \"false\"".to_owned()),
            },
        }
        Ok(())
    }

    fn set_parameter(
        &mut self,
        parameter: &str,
        form: Form,
        value: &str,
        field: &str,
        diagnostics: &mut Diagnostics,
    ) {
        let out = &mut self.parameters;
        match form {
            Form::Text if value.is_empty() => diagnostics.refuse(field, "the value is empty"),
            Form::Text => out.set(parameter, value),
            Form::Flag => match value.parse::<bool>() {
                Ok(true) => out.set(parameter, true),
                Ok(false) => {}
                Err(_) => diagnostics.refuse(field, "write \"true\" or \"false\""),
            },
            Form::Number => match value.parse::<i64>() {
                Ok(number) if number >= 0 => out.set(parameter, number),
                _ => diagnostics.refuse(field, "write a whole number"),
            },
            Form::Price => match value.parse::<f64>() {
                Ok(price) if price.is_finite() && price > 0.0 => out.set(parameter, price),
                _ => diagnostics.refuse(field, "write a price per hour, such as 0.25"),
            },
            Form::Gibibytes => match value.strip_suffix("Gi").unwrap_or(value).parse::<i64>() {
                Ok(number) if number > 0 => out.set(parameter, number),
                _ => diagnostics.refuse(field, "write a number of GiB, such as 50Gi"),
            },
        }
    }

    fn check_spot(&self, diagnostics: &mut Diagnostics) {
        let is_limited = self.parameters.get("SpotStrategy") == Some("SpotWithPriceLimit");
        if is_limited && self.parameters.get("SpotPriceLimit").is_none() {
            diagnostics.refuse(
                format!("metadata.annotations[{VENDOR}eci-spot-strategy]"),
                "SpotWithPriceLimit needs the annotation k8s.aliyun.com/eci-spot-price-limit",
            );
        }
    }
}

fn unknown(name: &str) -> String {
    let names = || PARAMETERS.iter().map(|(name, ..)| *name).chain(OTHERS);
    match nearest(name, names()) {
        Some(near) => format!("unknown, and without effect; did you mean {VENDOR}{near}?"),
        None => "unknown, and without effect".to_owned(),
    }
}

/// The smallest type of a family that is large enough: families have 2, 4 or 8 GiB for each CPU, by the letter of their name.
fn type_of_family(family: &str, pod: &Pod) -> Result<String, String> {
    let letters = family.strip_prefix("ecs.").unwrap_or_default();
    let letters: String = letters.chars().take_while(char::is_ascii_alphabetic).collect();
    let ratio = match letters.trim_start_matches("hf").chars().next() {
        Some('c') => 2,
        Some('g') if letters != "gn" => 4,
        Some('r') => 8,
        _ => {
            return Err(format!(
                "the sizes of {family:?} are not known: name the instance type with {VENDOR}eci-use-specs"
            ));
        }
    };
    let requested = vk_container_group::plan::size::requested(pod).total;
    let (cpu, memory) = (requested.cpu.to_milli(), requested.memory.to_units());
    let found = TYPE_SIZES
        .iter()
        .find(|(cpus, _)| cpus * 1000 >= cpu && (cpus * ratio).saturating_mul(1 << 30) >= memory);
    let (_, size) =
        found.ok_or_else(|| format!("the largest type of {family} is smaller than {requested}"))?;
    Ok(format!("{family}.{size}"))
}
