//! Garbage collection of layers and blobs.

use std::{collections::BTreeSet, fs, path::Path};

use super::{
    Store,
    index::Index,
    layer_usage,
    lock::StoreLock,
    names,
    temp_dir::{self, StoreTempDir},
};
use crate::image::{Digest, Error, Result};

impl Store {
    /// Removes unreferenced layers and blobs. Returns the bytes freed.
    pub(crate) fn collect_garbage(&self) -> Result<u64> {
        let lock = StoreLock::exclusive(&self.root)?;
        let index = Index::read(&self.root)?;
        let (trash, freed) = self.detach_garbage(&lock, &index)?;
        drop(lock);
        drop(trash);
        Ok(freed)
    }

    /// Moves unreferenced files out of the way. The slow removal happens when the returned directory is dropped, after
    /// the lock is released.
    pub(super) fn detach_garbage(
        &self,
        lock: &StoreLock,
        index: &Index,
    ) -> Result<(Option<StoreTempDir>, u64)> {
        let mut layers: BTreeSet<String> = temp_dir::remove_dead(lock, &self.root)?.into_iter().collect();
        let mut blobs = BTreeSet::new();
        let mut flats = BTreeSet::new();
        for (id, image) in &index.images {
            blobs.insert(id.hex());
            blobs.extend(image.manifest.as_ref().map(Digest::hex));
            layers.extend(image.layers.iter().map(Digest::hex));
            flats.insert(image.layers.last().unwrap_or(id).hex());
        }
        let mut trash = None;
        let mut freed = 0;
        let places = [("layers", &layers), ("plain", &layers), ("flat", &flats), ("blobs/sha256", &blobs)];
        for (place, wanted) in places {
            let place = self.root.join(place);
            for name in names(&place)? {
                if name.to_str().is_some_and(|name| wanted.contains(name)) {
                    continue;
                }
                let path = place.join(&name);
                freed += layer_usage(&path).bytes;
                self.move_to_trash(lock, &mut trash, &path)?;
            }
        }
        let holds = self.root.join("holds");
        for name in names(&holds)? {
            let id = name.to_str().and_then(Digest::from_hex);
            if id.is_none_or(|id| !index.images.contains_key(&id) || self.holder(&id).is_none()) {
                self.move_to_trash(lock, &mut trash, &holds.join(&name))?;
            }
        }
        Ok((trash, freed))
    }

    fn move_to_trash(&self, lock: &StoreLock, trash: &mut Option<StoreTempDir>, path: &Path) -> Result<()> {
        let trash = match trash {
            Some(trash) => trash,
            None => trash.insert(StoreTempDir::new_locked(lock, &self.root)?),
        };
        let target = trash.path().join(format!("{:016x}", rand::random::<u64>()));
        tracing::debug!(path = %path.display(), "removing unreferenced content");
        fs::rename(path, &target).map_err(Error::system("remove", path))
    }
}
