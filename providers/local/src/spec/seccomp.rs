//! Seccomp profiles.

mod table;

use std::{collections::BTreeSet, path::Path};

use oci_spec::runtime::LinuxSeccomp;
use serde::Deserialize;
use serde_json::{Value, json};
use vk_provider::{Error, Result};

/// Maximum size of a profile.
const MAX_PROFILE: u64 = 4 << 20;
/// "Operation not permitted" and "function not implemented".
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// Namespace flags of `clone`, which a container without CAP_SYS_ADMIN must not use.
const NEW_NAMESPACES: u64 = 0x7E02_0000;
/// `AF_VSOCK`, the connection to the host's hypervisor.
const VSOCK: u64 = 40;

/// The default profile: an allowlist. Some calls are allowed with the corresponding capability.
pub fn default_profile(capabilities: &BTreeSet<String>) -> Result<LinuxSeccomp> {
    let allow = |names: &[&str]| json!({ "names": names, "action": "SCMP_ACT_ALLOW" });
    let mut rules = vec![allow(table::ALLOWED)];
    for (capability, names) in table::BY_CAPABILITY {
        if capabilities.contains(*capability) {
            rules.push(allow(names));
        }
    }
    for persona in table::PERSONALITIES {
        rules.push(with(&["personality"], &json!([{ "index": 0, "value": persona, "op": "SCMP_CMP_EQ" }])));
    }
    rules.push(with(&["socket"], &json!([{ "index": 0, "value": VSOCK, "op": "SCMP_CMP_NE" }])));
    if !capabilities.contains("SYS_ADMIN") {
        let plain =
            json!([{ "index": 0, "value": NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }]);
        rules.push(with(&["clone"], &plain));
        // The flags of clone3 are in memory, which a filter cannot read: with ENOSYS, libraries fall back to clone.
        rules.push(json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS }));
    }
    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": architectures(),
        "syscalls": rules,
    });
    parse(profile, "the default seccomp profile")
}

/// Reads a profile from a file, in OCI format or in docker's, which adds conditions.
pub fn read_profile(path: &Path, capabilities: &BTreeSet<String>) -> Result<LinuxSeccomp> {
    use std::io::Read;
    // The text of containerd, which the kubelet shows.
    let shown = path.display();
    let unread = |error: std::io::Error| {
        Error::invalid(format!(
            "failed to generate seccomp spec opts: cannot load seccomp profile {:?}: open {shown}: {}",
            shown.to_string(),
            vk_provider::go_text::io_error(&error)
        ))
        .caused_by(error)
    };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_PROFILE).read_to_string(&mut text))
        .map_err(unread)?;
    let unlike = |error: serde_json::Error| {
        Error::invalid(format!("decoding seccomp profile {shown} failed: {error}")).caused_by(error)
    };
    let written: ProfileFile = serde_json::from_str(&text).map_err(unlike)?;
    let mut value = serde_json::to_value(&written.rest).map_err(unlike)?;
    if value.get("architectures").is_none() {
        value["architectures"] = json!(architectures());
    }
    let rules =
        written.syscalls.into_iter().filter(|rule| rule.applies(capabilities)).map(ProfileRule::plain);
    value["syscalls"] = rules.collect();
    if let Some(entries) = value.as_object_mut() {
        entries.remove("archMap");
    }
    parse(value, &format!("seccomp profile {shown}"))
}

fn parse(value: Value, what: &str) -> Result<LinuxSeccomp> {
    serde_json::from_value(value).map_err(|error| Error::invalid(format!("{what}: {error}")).caused_by(error))
}

fn with(names: &[&str], args: &Value) -> Value {
    json!({ "names": names, "action": "SCMP_ACT_ALLOW", "args": args })
}

fn architectures() -> Vec<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => vec!["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "aarch64" => vec!["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        "riscv64" => vec!["SCMP_ARCH_RISCV64"],
        "s390x" => vec!["SCMP_ARCH_S390X", "SCMP_ARCH_S390"],
        "powerpc64" => vec!["SCMP_ARCH_PPC64LE"],
        _ => Vec::new(),
    }
}

/// A profile as written in the file.
#[derive(Deserialize)]
struct ProfileFile {
    #[serde(default)]
    syscalls: Vec<ProfileRule>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// A rule with docker's conditions.
#[derive(Deserialize)]
struct ProfileRule {
    #[serde(default)]
    includes: RuleCondition,
    #[serde(default)]
    excludes: RuleCondition,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

#[derive(Default, Deserialize)]
struct RuleCondition {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
}

impl ProfileRule {
    fn applies(&self, capabilities: &BTreeSet<String>) -> bool {
        let has = |name: &String| capabilities.contains(name.strip_prefix("CAP_").unwrap_or(name));
        let here = |arch: &String| arch == go_arch();
        self.includes.caps.iter().all(has)
            && (self.includes.arches.is_empty() || self.includes.arches.iter().any(here))
            && !self.excludes.caps.iter().any(has)
            && !self.excludes.arches.iter().any(here)
    }

    fn plain(mut self) -> Value {
        for name in ["comment", "minKernel"] {
            self.rest.remove(name);
        }
        // The oldest format has a single name.
        if let Some(name) = self.rest.remove("name") {
            self.rest.entry("names").or_insert_with(|| json!([name]));
        }
        if self.rest.get("args").is_some_and(Value::is_null) {
            self.rest.remove("args");
        }
        Value::Object(self.rest)
    }
}

fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use oci_spec::runtime::LinuxSeccompAction;

    use super::*;

    fn allowed(profile: &LinuxSeccomp, name: &str) -> bool {
        let rules = profile.syscalls().as_ref().unwrap();
        rules.iter().any(|rule| {
            rule.action() == LinuxSeccompAction::ScmpActAllow
                && rule.names().iter().any(|other| other == name)
        })
    }

    #[test]
    fn the_default_profile_rejects_calls_that_are_not_listed() {
        let profile = default_profile(&BTreeSet::new()).unwrap();
        assert_eq!(profile.default_action(), LinuxSeccompAction::ScmpActErrno);
        for name in ["read", "execve", "clone", "openat2", "futex", "socket"] {
            assert!(allowed(&profile, name), "{name}");
        }
        for name in ["mount", "reboot", "bpf", "kexec_load", "keyctl", "unshare", "setns", "ptrace_peek"] {
            assert!(!allowed(&profile, name), "{name}");
        }
    }

    #[test]
    fn some_calls_are_allowed_with_a_capability() {
        let admin = default_profile(&BTreeSet::from(["SYS_ADMIN".to_owned()])).unwrap();
        assert!(allowed(&admin, "mount") && allowed(&admin, "clone3"));
        let boot = default_profile(&BTreeSet::from(["SYS_BOOT".to_owned()])).unwrap();
        assert!(allowed(&boot, "reboot") && !allowed(&boot, "mount"));
    }

    #[test]
    fn a_profile_in_dockers_format_is_read_with_its_conditions() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"defaultAction": "SCMP_ACT_ERRNO", "archMap": [{"architecture": "SCMP_ARCH_X86_64"}], "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": null, "comment": "", "includes": {}, "excludes": {}},
            {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"name": "write", "action": "SCMP_ACT_ALLOW"}]}"#;
        file.write_all(text.as_bytes()).unwrap();
        let plain = read_profile(file.path(), &BTreeSet::new()).unwrap();
        assert!(allowed(&plain, "read") && allowed(&plain, "write") && allowed(&plain, "chroot"));
        assert!(!allowed(&plain, "mount"));
        let admin = read_profile(file.path(), &BTreeSet::from(["SYS_ADMIN".to_owned()])).unwrap();
        assert!(allowed(&admin, "mount") && !allowed(&admin, "chroot"));
    }

    #[test]
    fn a_missing_or_malformed_profile_is_reported_with_its_path() {
        let error = read_profile(Path::new("/nowhere/x.json"), &BTreeSet::new()).unwrap_err();
        assert!(error.message().ends_with("open /nowhere/x.json: no such file or directory"), "{error}");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"{\"syscalls\": 3}").unwrap();
        let error = read_profile(file.path(), &BTreeSet::new()).unwrap_err();
        assert!(error.message().starts_with("decoding seccomp profile /"), "{error}");
    }
}
