//! Image garbage collection: which images are removed when the disk is full. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::name;
use crate::backend::Image;

/// All local images, with the times when they were first seen and last used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageInventory(BTreeMap<String, Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    found: Timestamp,
    used: Option<Timestamp>,
    size: u64,
    pinned: bool,
    /// See [`ImagesInUse`].
    keys: BTreeSet<String>,
}

/// The images in use. Runtimes refer to an image by its id, by a tag or by a digest, and not consistently: an image is in use if any of them
/// matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagesInUse(BTreeSet<String>);

/// Size and free space of the disk of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// Size in bytes.
    pub capacity: u64,
    /// Free space in bytes.
    pub available: u64,
}

/// Thresholds of the garbage collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcThresholds {
    /// Disk usage in percent at which it begins.
    pub high: u8,
    /// Disk usage in percent at which it ends.
    pub low: u8,
    /// Minimum age of an image: a newer one may be about to be used.
    pub min_age: Duration,
}

/// The images to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalPlan {
    /// Disk usage in percent.
    pub percent: u8,
    /// Bytes to free.
    pub bytes: u64,
    /// Ids and sizes of images, to be removed in this order until enough is free. If a removal fails, the next one is tried.
    pub candidates: Vec<(String, u64)>,
}

impl Default for GcThresholds {
    fn default() -> Self {
        Self { high: 85, low: 80, min_age: Duration::from_mins(2) }
    }
}

impl DiskUsage {
    /// Usage of the file system that contains this directory; `None` if it is unknown.
    pub async fn measure(directory: &str) -> Option<Self> {
        let directory = directory.to_owned();
        let stat = tokio::task::spawn_blocking(move || rustix::fs::statvfs(directory)).await.ok()?.ok()?;
        Some(Self {
            capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl<N: AsRef<str>> FromIterator<N> for ImagesInUse {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let names = names.into_iter().filter(|name| !name.as_ref().is_empty());
        Self(names.map(|name| name::key(name.as_ref())).collect())
    }
}

impl ImagesInUse {
    fn contains_any(&self, keys: &BTreeSet<String>) -> bool {
        !self.0.is_disjoint(keys)
    }
}

impl ImageInventory {
    /// Updates the inventory with all local images and those in use.
    pub fn update(&mut self, images: &[Image], used: &ImagesInUse, now: Timestamp) {
        for image in images {
            let fresh = Entry { found: now, used: None, size: 0, pinned: false, keys: BTreeSet::new() };
            let entry = self.0.entry(image.id.clone()).or_insert(fresh);
            let names = image.tags.iter().chain(&image.digests).chain([&image.id]);
            entry.keys = names.map(|name| name::key(name)).collect();
            if used.contains_any(&entry.keys) {
                entry.used = Some(now);
            }
            (entry.size, entry.pinned) = (image.size, image.pinned);
        }
        let ids: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.0.retain(|id, _| ids.contains(id.as_str()));
    }
}

/// The images to remove now; `None` if there is enough free space.
pub fn plan_removal(
    inventory: &ImageInventory,
    used: &ImagesInUse,
    disk: DiskUsage,
    limits: &GcThresholds,
    now: Timestamp,
) -> Option<RemovalPlan> {
    let (capacity, available) = (u128::from(disk.capacity), u128::from(disk.available.min(disk.capacity)));
    let percent = 100 - (available * 100).checked_div(capacity)?;
    if percent < u128::from(limits.high) {
        return None;
    }
    let room = capacity * (100 - u128::from(limits.low.min(100))) / 100;
    let is_old = |entry: &Entry| now.duration_since(entry.found).unsigned_abs() >= limits.min_age;
    let unused = inventory
        .0
        .iter()
        .filter(|(_, entry)| !used.contains_any(&entry.keys) && !entry.pinned && is_old(entry));
    let mut candidates: Vec<_> = unused.collect();
    candidates.sort_by_key(|(_, entry)| (entry.used, entry.found));
    Some(RemovalPlan {
        percent: u8::try_from(percent).unwrap_or(100),
        bytes: u64::try_from(room.saturating_sub(available)).unwrap_or(u64::MAX),
        candidates: candidates.into_iter().map(|(id, entry)| (id.clone(), entry.size)).collect(),
    })
}

/// The kubelet's message of the event `FreeDiskSpaceFailed`, if not enough could be freed.
pub fn shortfall_message(disk: DiskUsage, percent: u8, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({percent}% of {} used). Failed to free sufficient space by \
         deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, \
         volumes, or other data.",
        size(disk.capacity)
    )
}

fn size(bytes: u64) -> String {
    let units = [("KiB", 1u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    match units.into_iter().rev().find(|(_, unit)| bytes >= *unit) {
        // In tenths, with integers: a float has too few digits.
        Some((name, unit)) => {
            let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests;
