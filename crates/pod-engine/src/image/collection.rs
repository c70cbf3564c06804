//! Which images are removed when the disk fills. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::name;
use crate::backend::Image;

/// All images that are there, and since when, and when they were last seen in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census(BTreeMap<String, Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    found: Timestamp,
    used: Option<Timestamp>,
    size: u64,
    pinned: bool,
    /// See [`Used`].
    keys: BTreeSet<String>,
}

/// The images that are in use. Runtimes name an image in many ways, by its id, by a name with a tag, by a name with the digest of its
/// manifest, and not each in every answer: what matches in any way is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used(BTreeSet<String>);

/// The disk that images are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes that are free.
    pub available: u64,
}

/// When to begin, and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Percent in use at which images are removed.
    pub high: u8,
    /// Percent in use down to which they are removed.
    pub low: u8,
    /// How long an image has been there at least: a newer one may be about to be used.
    pub least_age: Duration,
}

/// What to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Percent of the disk in use.
    pub percent: u8,
    /// How much to free.
    pub bytes: u64,
    /// Images by id and size, in the order in which to remove them until enough is free. Where a removal is refused, the next one.
    pub candidates: Vec<(String, u64)>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { high: 85, low: 80, least_age: Duration::from_mins(2) }
    }
}

impl Disk {
    /// The file system that has this directory; `None` where nobody can tell.
    pub async fn holding(directory: &str) -> Option<Self> {
        let directory = directory.to_owned();
        let stat = tokio::task::spawn_blocking(move || rustix::fs::statvfs(directory)).await.ok()?.ok()?;
        Some(Self {
            capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl<N: AsRef<str>> FromIterator<N> for Used {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let names = names.into_iter().filter(|name| !name.as_ref().is_empty());
        Self(names.map(|name| name::key(name.as_ref())).collect())
    }
}

impl Used {
    fn has(&self, keys: &BTreeSet<String>) -> bool {
        !self.0.is_disjoint(keys)
    }
}

impl Census {
    /// Takes note of all images there are, and of those that containers use.
    pub fn look(&mut self, images: &[Image], used: &Used, now: Timestamp) {
        for image in images {
            let fresh = Entry { found: now, used: None, size: 0, pinned: false, keys: BTreeSet::new() };
            let entry = self.0.entry(image.id.clone()).or_insert(fresh);
            let names = image.tags.iter().chain(&image.digests).chain([&image.id]);
            entry.keys = names.map(|name| name::key(name)).collect();
            if used.has(&entry.keys) {
                entry.used = Some(now);
            }
            (entry.size, entry.pinned) = (image.size, image.pinned);
        }
        let ids: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.0.retain(|id, _| ids.contains(id.as_str()));
    }
}

/// What to remove now; `None` when the disk has room.
pub fn collection(
    census: &Census,
    used: &Used,
    disk: Disk,
    limits: &Limits,
    now: Timestamp,
) -> Option<Collection> {
    let (capacity, available) = (u128::from(disk.capacity), u128::from(disk.available.min(disk.capacity)));
    let percent = 100 - (available * 100).checked_div(capacity)?;
    if percent < u128::from(limits.high) {
        return None;
    }
    let room = capacity * (100 - u128::from(limits.low.min(100))) / 100;
    let old = |entry: &Entry| now.duration_since(entry.found).unsigned_abs() >= limits.least_age;
    let free = census.0.iter().filter(|(_, entry)| !used.has(&entry.keys) && !entry.pinned && old(entry));
    let mut candidates: Vec<_> = free.collect();
    candidates.sort_by_key(|(_, entry)| (entry.used, entry.found));
    Some(Collection {
        percent: u8::try_from(percent).unwrap_or(100),
        bytes: u64::try_from(room.saturating_sub(available)).unwrap_or(u64::MAX),
        candidates: candidates.into_iter().map(|(id, entry)| (id.clone(), entry.size)).collect(),
    })
}

/// What a kubelet says, as `FreeDiskSpaceFailed`, when not enough could be freed.
pub fn shortfall(disk: Disk, percent: u8, freed: u64) -> String {
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
        // In tenths, with integers: a disk's size has more digits than a float.
        Some((name, unit)) => {
            let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests;
