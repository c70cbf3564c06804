//! Platforms of images, and which of them this host can run.

use serde::Deserialize;

/// The platform of an image, as in manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
}

/// The platforms that a host runs, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPlatform {
    choices: Vec<(&'static str, String)>,
}

// === impl HostPlatform ===

impl HostPlatform {
    /// The platforms of this host.
    pub(crate) fn detect() -> Self {
        Self::new(std::env::consts::ARCH, x86_64_level())
    }

    /// The platforms of an architecture, given by Rust's name. `level` is the x86-64 microarchitecture level.
    fn new(architecture: &str, level: u8) -> Self {
        // As in containerd: includes older variants, and 32-bit programs where most hosts run them.
        let variants = |range: std::ops::RangeInclusive<u8>| {
            range.rev().map(|variant| format!("v{variant}")).collect::<Vec<_>>()
        };
        let plain = |name| vec![(name, String::new())];
        let choices = match architecture {
            "x86_64" => {
                let mut choices: Vec<_> =
                    variants(2..=level.max(1)).into_iter().map(|variant| ("amd64", variant)).collect();
                choices.extend([("amd64", String::new()), ("386", String::new())]);
                choices
            }
            "aarch64" => {
                let mut choices = vec![("arm64", "v8".to_owned())];
                choices.extend(variants(5..=8).into_iter().map(|variant| ("arm", variant)));
                choices
            }
            "arm" => variants(5..=7).into_iter().map(|variant| ("arm", variant)).collect(),
            "x86" => plain("386"),
            "powerpc64" => plain("ppc64le"),
            "loongarch64" => plain("loong64"),
            "riscv64" => plain("riscv64"),
            "s390x" => plain("s390x"),
            // Unknown to images: nothing matches.
            _ => Vec::new(),
        };
        Self { choices }
    }

    /// How well a platform matches, 0 is best; `None` if it does not.
    pub(crate) fn rank(&self, platform: &Platform) -> Option<usize> {
        if platform.os != "linux" {
            return None;
        }
        let architecture = match platform.architecture.as_str() {
            "x86_64" | "x86-64" => "amd64",
            "aarch64" => "arm64",
            "i386" | "i686" => "386",
            other => other,
        };
        // Default variants.
        let variant = match (architecture, platform.variant.as_deref().unwrap_or_default()) {
            ("amd64", "v1") => "",
            ("arm64", "" | "8") => "v8",
            ("arm", "" | "7") => "v7",
            (_, variant) => variant,
        };
        self.choices.iter().position(|(name, kind)| *name == architecture && kind == variant)
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> String {
        match self.choices.iter().find(|(name, variant)| variant.is_empty() || *name == "arm64") {
            Some((name, _)) => format!("linux/{name}"),
            None => format!("linux/{}", std::env::consts::ARCH),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn x86_64_level() -> u8 {
    use std::arch::is_x86_feature_detected as has;
    let second = has!("sse3")
        && has!("ssse3")
        && has!("sse4.1")
        && has!("sse4.2")
        && has!("popcnt")
        && has!("cmpxchg16b");
    let third = second
        && has!("avx")
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("f16c")
        && has!("fma")
        && has!("lzcnt")
        && has!("movbe");
    let fourth = third
        && has!("avx512f")
        && has!("avx512bw")
        && has!("avx512cd")
        && has!("avx512dq")
        && has!("avx512vl");
    1 + u8::from(second) + u8::from(third) + u8::from(fourth)
}

#[cfg(not(target_arch = "x86_64"))]
fn x86_64_level() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(architecture: &str, variant: &str) -> Platform {
        Platform {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: (!variant.is_empty()).then(|| variant.to_owned()),
        }
    }

    #[test]
    fn the_highest_supported_variant_is_preferred() {
        let host = HostPlatform::new("x86_64", 3);
        let rank = |variant| host.rank(&platform("amd64", variant));
        assert_eq!(rank("v4"), None);
        assert!(rank("v3") < rank("v2") && rank("v2") < rank(""));
        assert_eq!(rank("v1"), rank(""));
        assert!(rank("") < host.rank(&platform("386", "")));
        assert_eq!(HostPlatform::new("x86_64", 1).rank(&platform("amd64", "v2")), None);
    }

    #[test]
    fn arm64_also_runs_32_bit_variants() {
        let host = HostPlatform::new("aarch64", 1);
        assert_eq!(host.rank(&platform("arm64", "")), Some(0));
        assert_eq!(host.rank(&platform("arm64", "v8")), Some(0));
        assert_eq!(host.rank(&platform("arm64", "v9")), None);
        assert!(host.rank(&platform("arm", "v7")) < host.rank(&platform("arm", "v6")));
        assert_eq!(host.rank(&platform("amd64", "")), None);
    }

    #[test]
    fn other_operating_systems_and_attestations_never_match() {
        let host = HostPlatform::detect();
        assert!(!host.choices.is_empty());
        assert_eq!(host.rank(&Platform { os: "windows".into(), ..platform("amd64", "") }), None);
        let unknown = Platform { architecture: "unknown".into(), os: "unknown".into(), variant: None };
        assert_eq!(host.rank(&unknown), None);
    }
}
