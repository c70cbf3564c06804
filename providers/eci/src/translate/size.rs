//! Sizes: what containers request, and the size that the group gets.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use vk_container_group::{
    backend::Size,
    plan::{
        Diagnostics,
        files::FileLimits,
        size::{self, SizeRule, SizeTable},
    },
};
use vk_provider::{Quantity, requests};

use super::annotations::{Spec, Wishes};
use crate::api::Parameters;

/// The sizes that the vendor sells: thousandths of a CPU, and MiB.
pub(crate) const SIZES: SizeRule = SizeRule::Table(SizeTable {
    rows: &[
        (250, &[512, 1024]),
        (500, &[1024, 2048]),
        (1000, &[2048, 4096, 8192]),
        (2000, &[1024, 2048, 4096, 8192, 16384]),
        (4000, &[2048, 4096, 8192, 16384, 32768]),
        (8000, &[4096, 8192, 16384, 32768, 65536]),
        (12000, &[12288, 24576, 49152, 98304]),
        (16000, &[16384, 32768, 65536, 131_072]),
        (24000, &[24576, 49152, 98304, 196_608]),
        (32000, &[32768, 65536, 131_072, 262_144]),
        (52000, &[98304, 196_608, 393_216]),
        (64000, &[131_072, 262_144, 524_288]),
    ],
    default_cpu_milli: 2000,
    default_memory_mib: 4096,
});

/// The limits of files, in bytes.
pub(crate) const FILE_LIMITS: FileLimits = FileLimits { file: 32 << 10, group: 60 << 10 };

/// The ephemeral storage that every group has.
const FREE_STORAGE_GIB: i64 = 30;
const GIB: i64 = 1 << 30;
const GPU: &str = "nvidia.com/gpu";

/// Writes what the pod as a whole requests. Returns the size that the group will have.
pub(super) fn write(
    pod: &Pod,
    spec: &PodSpec,
    wishes: &Wishes,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) -> Option<Size> {
    let requested = size::requested(pod);
    let size = if wishes.specs.is_empty() {
        size::group_size(pod, &SIZES, diagnostics).map(|size| size.effective)
    } else {
        // The instance type that the user names may be larger than all sizes.
        let largest = Size { cpu: requested.total.cpu, memory: requested.total.memory, instance_type: None };
        size::group_size(pod, &SIZES, &mut Diagnostics::default())
            .map(|size| size.effective)
            .or(Some(largest))
    };
    let is_whole = spec.resources.is_some() || spec.overhead.as_ref().is_some_and(|all| !all.is_empty());
    if is_whole {
        // Otherwise the service adds up what the containers request.
        out.set_some("Cpu", cpus(requested.total.cpu));
        out.set_some("Memory", gibibytes(requested.total.memory));
    }
    let storage =
        requested.all.get("ephemeral-storage").map_or(0, |amount| divided_up(amount.to_units(), GIB));
    if storage > FREE_STORAGE_GIB && out.get("EphemeralStorage").is_none() {
        out.set("EphemeralStorage", storage - FREE_STORAGE_GIB);
    }
    check(&requested.all, wishes, diagnostics);
    size
}

fn check(all: &requests::ResourceList, wishes: &Wishes, diagnostics: &mut Diagnostics) {
    let field = "spec.containers[*].resources";
    let has_type = wishes.specs.iter().all(|spec| matches!(spec, Spec::InstanceType(_)));
    for (name, amount) in all {
        match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => {}
            _ if amount.to_nano() == 0 => {}
            GPU if has_type && !wishes.specs.is_empty() => {}
            GPU => diagnostics.refuse(
                format!("{field}[{GPU}]"),
                "GPUs need an instance type: add the annotation k8s.aliyun.com/eci-use-specs, such as ecs.gn6i-c4g1.xlarge",
            ),
            other => diagnostics.refuse(format!("{field}[{other}]"), "ECI has no such resource: remove it"),
        }
    }
}

/// Writes what a container requests: requests, else limits.
pub(super) fn write_container(container: &Container, prefix: &str, out: &mut Parameters) {
    let Some(resources) = &container.resources else { return };
    let amount = |name: &str| {
        let of = |list: &Option<_>| requests::amounts(list.as_ref()).get(name).copied();
        of(&resources.requests).or_else(|| of(&resources.limits))
    };
    out.set_some(format!("{prefix}.Cpu"), amount("cpu").and_then(cpus));
    out.set_some(format!("{prefix}.Memory"), amount("memory").and_then(gibibytes));
    let gpus = amount(GPU).map(Quantity::to_units).filter(|count| *count > 0);
    out.set_some(format!("{prefix}.Gpu"), gpus);
}

/// CPUs with three decimals; `None` for none.
#[expect(clippy::cast_precision_loss, reason = "quantities of pods are far below 2^52")]
fn cpus(amount: Quantity) -> Option<f64> {
    let milli = amount.to_milli();
    (milli > 0).then_some(milli as f64 / 1000.0)
}

/// GiB with three decimals, rounded up; `None` for none.
#[expect(clippy::cast_precision_loss, reason = "quantities of pods are far below 2^52")]
fn gibibytes(amount: Quantity) -> Option<f64> {
    let thousandths = divided_up(amount.to_units().saturating_mul(1000), GIB);
    (thousandths > 0).then_some(thousandths as f64 / 1000.0)
}

fn divided_up(amount: i64, by: i64) -> i64 {
    amount / by + i64::from(amount % by > 0)
}
