//! Sizes and prices.

use super::Settings;
use crate::error::{ApiError, Result};

/// vCPUs, and the GiB of memory that go with them.
const GRID: [(f64, &[f64]); 12] = [
    (0.25, &[0.5, 1.0]),
    (0.5, &[1.0, 2.0]),
    (1.0, &[2.0, 4.0, 8.0]),
    (2.0, &[1.0, 2.0, 4.0, 8.0, 16.0]),
    (4.0, &[2.0, 4.0, 8.0, 16.0, 32.0]),
    (8.0, &[4.0, 8.0, 16.0, 32.0, 64.0]),
    (12.0, &[12.0, 24.0, 48.0, 96.0]),
    (16.0, &[16.0, 32.0, 64.0, 128.0]),
    (24.0, &[24.0, 48.0, 96.0, 192.0]),
    (32.0, &[32.0, 64.0, 128.0, 256.0]),
    (52.0, &[96.0, 192.0, 384.0]),
    (64.0, &[128.0, 256.0, 512.0]),
];

/// What is billed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Size {
    pub(crate) cpu: f64,
    pub(crate) memory: f64,
}

// === impl Size ===

impl Size {
    /// The size of a type of instance: `2-4Gi`, `ecs.c6.xlarge`.
    pub(crate) fn of_type(name: &str) -> Result<Self> {
        let unknown = || {
            ApiError::new(
                400,
                "InvalidResourceType.NotSupported",
                format!("The specified resource type {name} is not supported."),
            )
        };
        // Types with a GPU have the same character in their family: `ecs.gn6i-c4g1.xlarge`.
        if let Some((cpu, memory)) = name.split_once('-').filter(|_| !name.starts_with("ecs.")) {
            let memory = memory.strip_suffix("Gi").ok_or_else(unknown)?;
            let (cpu, memory) = (cpu.parse().map_err(|_| unknown())?, memory.parse().map_err(|_| unknown())?);
            return grid(cpu, memory);
        }
        let mut fields = name.split('.');
        let (Some("ecs"), Some(family), Some(size), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(unknown());
        };
        let cpu = match size.strip_suffix("xlarge") {
            Some("") => 4.0,
            Some(times) => 4.0 * times.parse::<f64>().map_err(|_| unknown())?,
            None if size == "large" => 2.0,
            None => return Err(unknown()),
        };
        let ratio = match family.bytes().next() {
            Some(b'c') => 2.0,
            Some(b'g') => 4.0,
            Some(b'r') => 8.0,
            _ => return Err(unknown()),
        };
        Ok(Self { cpu, memory: cpu * ratio })
    }

    /// `2-4`.
    pub(crate) fn name(self) -> String {
        format!("{}-{}", self.cpu, self.memory)
    }
}

/// The next size that holds so much. Nothing asked for is 2 vCPUs and 4 GiB.
pub(crate) fn grid(cpu: f64, memory: f64) -> Result<Size> {
    if cpu <= 0.0 && memory <= 0.0 {
        return Ok(Size { cpu: 2.0, memory: 4.0 });
    }
    let sizes = GRID.iter().flat_map(|(cpu, memories)| memories.iter().map(|memory| (*cpu, *memory)));
    let holds = sizes.filter(|(cpus, memories)| *cpus >= cpu && *memories >= memory);
    let smallest = holds.min_by(|left, right| {
        let cost = |size: &(f64, f64)| size.0 * 8.0 + size.1;
        cost(left).total_cmp(&cost(right))
    });
    smallest.map(|(cpu, memory)| Size { cpu, memory }).ok_or_else(|| {
        ApiError::invalid(
            "CPU.Memory",
            format!("The specified cpu {cpu} and memory {memory} are not allowed."),
        )
    })
}

/// The price of a second, as the service names prices.
pub(crate) fn price_of(settings: &Settings, size: Size, is_spot: bool) -> f64 {
    let full = size.cpu * settings.cpu_hour + size.memory * settings.memory_hour;
    per_second(if is_spot { full * 0.2 } else { full })
}

/// The price of a second, from that of an hour.
pub(crate) fn per_second(hour: f64) -> f64 {
    (hour / 3600.0 * 1e9).round() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_the_grid() {
        let size = |cpu, memory| grid(cpu, memory).unwrap().name();
        assert_eq!(size(1.5, 3.0), "2-4");
        assert_eq!(size(0.0, 0.0), "2-4");
        assert_eq!(size(0.1, 0.1), "0.25-0.5");
        assert_eq!(size(1.0, 9.0), "2-16");
        assert_eq!(grid(65.0, 1.0).unwrap_err().code, "InvalidParameter.CPU.Memory");
    }

    #[test]
    fn types_have_sizes() {
        assert_eq!(Size::of_type("2-4Gi").unwrap().name(), "2-4");
        assert_eq!(Size::of_type("ecs.c6.xlarge").unwrap().name(), "4-8");
        assert_eq!(Size::of_type("ecs.g7.2xlarge").unwrap().name(), "8-32");
        assert_eq!(Size::of_type("ecs.gn6i-c4g1.xlarge").unwrap().name(), "4-16");
        assert_eq!(Size::of_type("ecs.c6").unwrap_err().code, "InvalidResourceType.NotSupported");
    }
}
