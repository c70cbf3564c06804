//! The service environment variables of containers, like the kubelet's.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use k8s_openapi::api::core::v1::{Service, ServicePort};

/// The service that every container gets variables for, regardless of `enableServiceLinks`.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// The variables by name. If two services produce the same variable, the service whose name sorts last wins; in a kubelet the
/// winner is random.
pub(super) fn variables(services: &[Arc<Service>], namespace: &str, links: bool) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let home = service.metadata.namespace.as_deref().unwrap_or_default();
        if address(service).is_none() {
            continue;
        }
        // A service `kubernetes` in the pod's namespace wins over the one in `default`.
        if (home, name) == MASTER {
            chosen.entry(name).or_insert(service);
        } else if home == namespace && links {
            chosen.insert(name, service);
        }
    }
    let mut variables = BTreeMap::new();
    for (name, service) in chosen {
        if let Some(address) = address(service) {
            let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
            describe(&mut variables, &variable(name), address, ports);
        }
    }
    variables
}

/// The cluster IP. Headless services and services without a cluster IP have no variables.
fn address(service: &Service) -> Option<&str> {
    let address = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!address.is_empty() && address != "None").then_some(address)
}

fn variable(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn describe(variables: &mut BTreeMap<String, String>, prefix: &str, address: &str, ports: &[ServicePort]) {
    variables.insert(format!("{prefix}_SERVICE_HOST"), address.to_owned());
    for (index, port) in ports.iter().enumerate() {
        let number = port.port.to_string();
        let protocol = port.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        let (upper, lower) = (protocol.to_uppercase(), protocol.to_lowercase());
        let mut url = format!("{lower}://");
        // Written to a string: cannot fail.
        let _ = if address.contains([':', '%']) {
            write!(url, "[{address}]:{number}")
        } else {
            write!(url, "{address}:{number}")
        };
        if index == 0 {
            variables.insert(format!("{prefix}_SERVICE_PORT"), number.clone());
            variables.insert(format!("{prefix}_PORT"), url.clone());
        }
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            variables.insert(format!("{prefix}_SERVICE_PORT_{}", variable(name)), number.clone());
        }
        let prefix = format!("{prefix}_PORT_{number}_{upper}");
        variables.insert(format!("{prefix}_PROTO"), lower);
        variables.insert(format!("{prefix}_PORT"), number);
        variables.insert(format!("{prefix}_ADDR"), address.to_owned());
        variables.insert(prefix, url);
    }
}

#[cfg(test)]
mod tests;
