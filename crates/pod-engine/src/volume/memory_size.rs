//! Size limits of memory volumes. Pure.

use k8s_openapi::{
    api::core::v1::{EmptyDirVolumeSource, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::{quantity::Quantity, requests::is_sidecar};

/// The size limit of a memory volume in bytes, as in a kubelet: the smallest of the node's allocatable memory, the pod's limit and the
/// volume's limit. `None` is the kernel's default.
pub(super) fn memory(
    pod: &Pod,
    source: Option<&EmptyDirVolumeSource>,
    allocatable: Option<i64>,
) -> Option<u64> {
    let volume = source.and_then(|source| source.size_limit.as_ref()).and_then(units);
    let smaller = |size: Option<i64>, other: Option<i64>| match (size, other.filter(|other| *other > 0)) {
        (Some(size), Some(other)) => Some(size.min(other)),
        (size, other) => other.or(size),
    };
    let size = smaller(smaller(allocatable.filter(|bytes| *bytes > 0), pod_limit(pod)), volume)?;
    u64::try_from(size).ok()
}

/// The total memory limit of the pod's containers, if each has one.
fn pod_limit(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let overhead = spec.overhead.as_ref().and_then(|list| list.get("memory")).and_then(units).unwrap_or(0);
    if let Some(whole) = limit(spec.resources.as_ref()) {
        return Some(whole.saturating_add(overhead));
    }
    let (mut sum, mut sidecars, mut most) = (0_i64, 0_i64, 0_i64);
    for container in &spec.containers {
        sum = sum.saturating_add(limit(container.resources.as_ref())?);
    }
    // An init container runs together with the sidecars before it.
    for container in spec.init_containers.iter().flatten() {
        let own = limit(container.resources.as_ref()).unwrap_or(0);
        let together = sidecars.saturating_add(own);
        if together == 0 {
            return None;
        }
        if is_sidecar(container) {
            sum = sum.saturating_add(own);
            sidecars = together;
        }
        most = most.max(together);
    }
    let most = most.max(sum);
    (most > 0).then(|| most.saturating_add(overhead))
}

fn limit(resources: Option<&ResourceRequirements>) -> Option<i64> {
    resources?.limits.as_ref()?.get("memory").and_then(units).filter(|bytes| *bytes > 0)
}

fn units(quantity: &ApiQuantity) -> Option<i64> {
    quantity.0.parse::<Quantity>().ok().map(Quantity::to_units)
}

/// The page size of a volume with the medium `HugePages` or `HugePages-2Mi`: the size that a container requests.
pub(super) fn huge_page(pod: &Pod, medium: &str) -> Result<String, String> {
    let wanted = medium.strip_prefix("HugePages-");
    let same = |one: &str, other: &str| {
        let (one, other) = (one.parse::<Quantity>(), other.parse::<Quantity>());
        one.is_ok() && one.ok() == other.ok()
    };
    let spec = pod.spec.as_ref();
    let whole = spec.and_then(|spec| spec.resources.as_ref());
    let containers = spec.into_iter().flat_map(|spec| {
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|it| it.resources.as_ref())
    });
    let requests = std::iter::once(whole).chain(containers).flatten().filter_map(|it| it.requests.as_ref());
    let mut found: Option<&str> = None;
    for size in requests.flat_map(|list| list.keys()).filter_map(|name| name.strip_prefix("hugepages-")) {
        match (wanted, found) {
            (Some(wanted), _) if !same(wanted, size) => {}
            (None, Some(other)) if !same(other, size) => {
                return Err(format!(
                    "medium: {medium} can't be used if container requests multiple huge page sizes"
                ));
            }
            _ => found = Some(size),
        }
    }
    found.map(str::to_owned).ok_or_else(|| {
        format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    })
}

#[cfg(test)]
mod tests;
