//! What nobody refers to.

use std::{collections::BTreeSet, fs, path::Path};

use super::{
    Store,
    index::Index,
    layer_usage,
    lock::Lock,
    names,
    scratch::{self, Scratch},
};
use crate::image::{Digest, Error, Result};

impl Store {
    /// Removes what nobody refers to. Returns the bytes of layers that went.
    pub(crate) fn collect(&self) -> Result<u64> {
        let lock = Lock::exclusive(&self.root)?;
        let index = Index::read(&self.root)?;
        let (trash, freed) = self.sweep(&lock, &index)?;
        drop(lock);
        drop(trash);
        Ok(freed)
    }

    /// Puts what nobody refers to out of sight. It takes long to remove it, which is done by dropping what is returned, after the
    /// lock.
    pub(super) fn sweep(&self, lock: &Lock, index: &Index) -> Result<(Option<Scratch>, u64)> {
        let mut layers: BTreeSet<String> = scratch::clean(lock, &self.root)?.into_iter().collect();
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
                self.discard(lock, &mut trash, &path)?;
            }
        }
        let holds = self.root.join("holds");
        for name in names(&holds)? {
            let id = name.to_str().and_then(Digest::from_hex);
            if id.is_none_or(|id| !index.images.contains_key(&id) || self.holder(&id).is_none()) {
                self.discard(lock, &mut trash, &holds.join(&name))?;
            }
        }
        Ok((trash, freed))
    }

    fn discard(&self, lock: &Lock, trash: &mut Option<Scratch>, path: &Path) -> Result<()> {
        let trash = match trash {
            Some(trash) => trash,
            None => trash.insert(Scratch::under(lock, &self.root)?),
        };
        let target = trash.path().join(format!("{:016x}", rand::random::<u64>()));
        tracing::debug!(path = %path.display(), "no image needs it any more");
        fs::rename(path, &target).map_err(Error::system("remove", path))
    }
}
