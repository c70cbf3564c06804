//! Adding an image to the store.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    sync::Arc,
};

use super::{
    Store,
    index::{self, Index},
    lock::Lock,
    scratch::Scratch,
};
use crate::image::{
    Digest, Error, Result, Stored,
    manifest::Plan,
    unpack::{self, Expected, Unpacked, adopt},
};

/// Adds the parts of an image. Claims are released and unfinished parts are removed on drop.
#[derive(Debug)]
pub(crate) struct Intake {
    store: Arc<Store>,
    scratch: Scratch,
}

/// The names of an image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
}

impl Intake {
    pub(crate) fn new(store: &Arc<Store>) -> Result<Self> {
        Ok(Self { store: Arc::clone(store), scratch: Scratch::new(&store.root)? })
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Whether a layer exists. In any case it is not removed while this is alive.
    pub(crate) fn present(&self, chain: &Digest) -> Result<bool> {
        let _lock = Lock::shared(&self.store.root)?;
        let mark = self.scratch.directory("keep")?.join(chain.hex());
        fs::write(&mark, b"").map_err(Error::system("write", &mark))?;
        Ok(self.store.layer(chain).symlink_metadata().is_ok())
    }

    /// Unpacks a layer into the temporary directory. Blocks.
    pub(crate) fn unpack(&self, number: usize, source: impl Read, expected: &Expected) -> Result<Unpacked> {
        let room = self.room(number);
        let result = self.try_unpack(number, source, expected);
        if result.is_err() {
            // Immediately, not on drop: if the disk is full, others need the space.
            let _ = unpack::remove_at(rustix::fs::CWD, room.as_os_str());
        }
        let diff = expected.diff.map_or_else(String::new, |diff| format!(" {diff}"));
        result.map_err(|error| error.within(&format!("failed to extract layer{diff}")))
    }

    fn try_unpack(&self, number: usize, source: impl Read, expected: &Expected) -> Result<Unpacked> {
        let room = self.room(number);
        // From an earlier attempt.
        unpack::remove_at(rustix::fs::CWD, room.as_os_str()).map_err(Error::system("remove", &room))?;
        let room = room.join("fs");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&room)
            .map_err(Error::system("make", &room))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&room, mode).map_err(Error::system("chmod", &room))?;
        unpack::layer(source, &room, self.store.form, expected, &self.store.settings.limits)
    }

    /// Moves an unpacked layer into place. The layers below must exist.
    pub(crate) fn settle(&self, plan: &Plan, number: usize, unpacked: &Unpacked) -> Result<()> {
        let room = self.room(number);
        let below: Vec<_> =
            plan.layers[..number].iter().map(|layer| self.store.layer(&layer.chain)).collect();
        adopt(&room.join("fs"), &unpacked.implied, &below, self.store.form)?;
        let json = serde_json::to_vec(&unpacked.usage).map_err(|why| Error::io("write", why.into()))?;
        let file = room.join("layer.json");
        fs::write(&file, json).map_err(Error::system("write", &file))?;
        let target = self.store.layers().join(plan.layers[number].chain.hex());
        match fs::rename(&room, &target) {
            // Another process has stored the same layer.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                unpack::remove_at(rustix::fs::CWD, room.as_os_str()).map_err(Error::system("remove", &room))
            }
            answer => answer.map_err(Error::system("rename", &target)),
        }
    }

    /// Records the image in the index, once all its layers exist. Blocks.
    pub(crate) fn commit(
        &self,
        plan: &Plan,
        manifest: Option<&[u8]>,
        size: u64,
        names: &Names,
    ) -> Result<Stored> {
        let root = &self.store.root;
        // After a power loss, an image in the index must have its files.
        let directory = fs::File::open(root).map_err(Error::system("open", root))?;
        rustix::fs::syncfs(&directory).map_err(Error::system("sync", root))?;
        let _lock = Lock::exclusive(root)?;
        index::replace(root, &self.store.blob(&plan.id), &plan.config)?;
        let mut index = Index::read(root)?;
        for (id, image) in &mut index.images {
            if *id != plan.id {
                // A name refers to one image. An image without names is still found by digest and id.
                names.tags.iter().chain(&names.digests).for_each(|name| {
                    image.tags.remove(name);
                    image.digests.remove(name);
                });
            }
        }
        let record = index.images.entry(plan.id).or_default();
        record.tags.extend(names.tags.iter().cloned());
        record.digests.extend(names.digests.iter().cloned());
        record.size = size;
        record.layers = plan.layers.iter().map(|layer| layer.chain).collect();
        if let Some(manifest) = manifest {
            let digest = Digest::of(manifest);
            index::replace(root, &self.store.blob(&digest), manifest)?;
            record.manifest = Some(digest);
        }
        let stored = index::load(&self.store, &plan.id, record)?;
        index.write(root)?;
        Ok(stored)
    }

    fn room(&self, number: usize) -> PathBuf {
        self.scratch.path().join(number.to_string())
    }
}
