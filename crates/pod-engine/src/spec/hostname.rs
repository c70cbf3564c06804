//! The host name of a pod.

use k8s_openapi::api::core::v1::Pod;
use vk_provider::{Error, Result};

use super::spec;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// The short host name of a pod and its domain, which is empty without a `subdomain`.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> Result<(String, String)> {
    let spec = spec(pod)?;
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    if let Some(name) = &spec.hostname_override {
        if !is_subdomain(name) {
            return Err(Error::invalid(format!(
                "pod HostnameOverride {name:?} is not a valid DNS subdomain: {}",
                not_a_subdomain(name)
            )));
        }
        return Ok((truncate(pod_name, name)?, String::new()));
    }
    let name = match given(&spec.hostname) {
        Some(name) => {
            check_label("Hostname", &name)?;
            name
        }
        None => pod_name.to_owned(),
    };
    let name = truncate(pod_name, &name)?;
    let domain = match given(&spec.subdomain) {
        Some(subdomain) => {
            check_label("Subdomain", &subdomain)?;
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            format!("{subdomain}.{namespace}.svc.{cluster_domain}")
        }
        None => String::new(),
    };
    Ok((name, domain))
}

/// The host name for the kernel: with its domain if the pod asks for the FQDN.
pub(super) fn kernel_hostname(name: String, domain: &str, with_domain: bool) -> Result<String> {
    /// The kernel's limit.
    const MAX_LEN: usize = 64;
    if domain.is_empty() || !with_domain {
        return Ok(name);
    }
    let name = format!("{name}.{domain}");
    if name.len() > MAX_LEN {
        return Err(Error::invalid(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long \
             ({MAX_LEN} characters is the max, {} characters requested)",
            name.len()
        )));
    }
    Ok(name)
}

fn truncate(pod_name: &str, name: &str) -> Result<String> {
    const LONGEST: usize = 63;
    let Some(short) = name.get(..LONGEST).filter(|_| name.len() > LONGEST) else {
        return Ok(name.to_owned());
    };
    let short = short.trim_end_matches(['-', '.']);
    if short.is_empty() {
        return Err(Error::invalid(format!("hostname for pod {pod_name:?} was invalid: {name:?}")));
    }
    Ok(short.to_owned())
}

fn check_label(field: &str, text: &str) -> Result<()> {
    let mut wrong = Vec::new();
    if text.len() > 63 {
        wrong.push("must be no more than 63 bytes".to_owned());
    }
    if !is_label(text) {
        wrong.push(if is_subdomain(text) {
            "must not contain dots".to_owned()
        } else {
            format!(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
                 with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL}')"
            )
        });
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(format!("pod {field} {text:?} is not a valid DNS label: {}", wrong.join(";"))))
}

fn not_a_subdomain(text: &str) -> String {
    let mut wrong = Vec::new();
    if text.len() > 253 {
        wrong.push("must be no more than 253 bytes".to_owned());
    }
    if !text.split('.').all(is_label) {
        wrong.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
             and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{LABEL}(\\.{LABEL})*')"
        ));
    }
    wrong.join(";")
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().next_back()];
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    ends.into_iter().all(|end| end.is_some_and(plain)) && text.bytes().all(|byte| plain(byte) || byte == b'-')
}

#[cfg(test)]
mod tests;
