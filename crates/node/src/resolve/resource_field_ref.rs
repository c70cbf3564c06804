//! `resourceFieldRef`: a container's requests and limits, divided by a divisor.
//!
//! An unset limit defaults to the node's allocatable amount. All values are rounded up. As in the kubelet, variables and
//! files differ in two points: a variable prefers the pod-level limit over the node's, and a variable with a container name
//! only has a default if that is a regular container.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, ResourceFieldSelector, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::{Error, Quantity, Result, resolve::NodeFacts};

/// Resources whose limit defaults to the node's amount. Huge pages always have an explicit limit.
const DEFAULTED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Resources that can have a pod-level limit.
const POD_LEVEL: [&str; 2] = ["cpu", "memory"];

/// The value for a variable of a container with the resources `own`.
pub(super) fn variable(
    field: &ResourceFieldSelector,
    pod: &Pod,
    own: Option<&ResourceRequirements>,
    node: &NodeFacts,
) -> Result<String> {
    let fallback = |resource: &str| -> Result<Option<Quantity>> {
        let of_node = node.allocatable.get(resource).copied();
        let of_pod = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref())
            .filter(|_| of_node.is_some() && POD_LEVEL.contains(&resource))
            .and_then(|resources| resources.limits.as_ref()?.get(resource));
        Ok(of_pod.map(parse).transpose()?.filter(|limit| *limit != Quantity::units(0)).or(of_node))
    };
    match container_name(field) {
        None => value(field, own, Some(&fallback)),
        Some(name) => {
            let found = find(pod, name)?;
            value(field, found.resources, if found.regular { Some(&fallback) } else { None })
        }
    }
}

/// The value for a downward API file.
pub(super) fn file(field: &ResourceFieldSelector, pod: &Pod, node: &NodeFacts) -> Result<String> {
    let found = find(pod, container_name(field).unwrap_or_default())?;
    value(field, found.resources, Some(&|resource| Ok(node.allocatable.get(resource).copied())))
}

fn container_name(field: &ResourceFieldSelector) -> Option<&str> {
    field.container_name.as_deref().filter(|name| !name.is_empty())
}

struct FoundContainer<'a> {
    resources: Option<&'a ResourceRequirements>,
    regular: bool,
}

fn find<'a>(pod: &'a Pod, name: &str) -> Result<FoundContainer<'a>> {
    let spec = pod.spec.as_ref();
    let regular = spec.iter().flat_map(|spec| &spec.containers).map(|container| (container, true));
    let init = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let (container, regular) = regular
        .chain(init.map(|container| (container, false)))
        .find(|(container, _)| container.name == name)
        .ok_or_else(|| Error::invalid(format!("container {name} not found")))?;
    Ok(FoundContainer { resources: container.resources.as_ref(), regular })
}

type Fallback<'a> = &'a dyn Fn(&str) -> Result<Option<Quantity>>;

fn value(
    field: &ResourceFieldSelector,
    resources: Option<&ResourceRequirements>,
    fallback: Option<Fallback<'_>>,
) -> Result<String> {
    let unsupported = || Error::invalid(format!("unsupported container resource : {}", field.resource));
    let (list, resource) = field.resource.split_once('.').ok_or_else(unsupported)?;
    let limits = match list {
        "limits" => true,
        "requests" => false,
        _ => return Err(unsupported()),
    };
    if !DEFAULTED.contains(&resource) && !resource.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let amounts = resources.and_then(|resources| {
        let list = if limits { &resources.limits } else { &resources.requests };
        list.as_ref()
    });
    let mut amount =
        amounts.and_then(|amounts: &BTreeMap<_, _>| amounts.get(resource)).map(parse).transpose()?;
    if limits
        && DEFAULTED.contains(&resource)
        && amount.is_none_or(|amount| amount == Quantity::units(0))
        && let Some(fallback) = fallback
    {
        amount = fallback(resource)?.or(amount);
    }
    let amount = amount.unwrap_or(Quantity::units(0));
    let divisor = match &field.divisor {
        Some(divisor) => parse(divisor)?,
        None => Quantity::units(0),
    };
    let divisor = if divisor == Quantity::units(0) { Quantity::units(1) } else { divisor };
    // CPU is counted in thousandths, everything else in units. Both sides are rounded up before the division.
    let (amount, divisor) = if resource == "cpu" {
        (amount.to_milli(), divisor.to_milli())
    } else {
        (amount.to_units(), divisor.to_units())
    };
    Ok(divide_rounding_up(amount, divisor).to_string())
}

/// The quotient rounded up, in floating point like the kubelet's, which is inexact beyond 2^53.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "as the kubelet computes it"
)]
fn divide_rounding_up(amount: i64, divisor: i64) -> i64 {
    (amount as f64 / divisor as f64).ceil() as i64
}

fn parse(quantity: &ApiQuantity) -> Result<Quantity> {
    Quantity::try_from(quantity).map_err(|error| Error::invalid(error.to_string()))
}

#[cfg(test)]
mod tests;
