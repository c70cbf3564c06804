//! Adding an image to the store.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Read, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    sync::Arc,
};

use super::{
    Store,
    index::{self, Index},
    lock::StoreLock,
    temp_dir::StoreTempDir,
};
use crate::image::{
    Digest, Error, Result, StoredImage,
    manifest::ImageContent,
    unpack::{self, ExpectedLayer, UnpackedLayer, inherit_attributes},
};

/// Adds the parts of an image. Claims are released and unfinished parts are removed on drop.
#[derive(Debug)]
pub(crate) struct Ingest {
    store: Arc<Store>,
    temp_dir: StoreTempDir,
}

/// The names of an image.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageNames {
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
}

/// Where an image comes from, which decides who may use it.
#[derive(Clone, Debug)]
pub(crate) enum ImageOrigin {
    /// The operator imported it: everyone may.
    Import,
    /// It was pulled from this repository, with credentials of this hash or anonymously.
    Pull { repository: String, credentials: Option<String> },
}

impl Ingest {
    pub(crate) fn new(store: &Arc<Store>) -> Result<Self> {
        Ok(Self { store: Arc::clone(store), temp_dir: StoreTempDir::new(&store.root)? })
    }

    pub(crate) fn temp_dir(&self) -> &StoreTempDir {
        &self.temp_dir
    }

    /// Whether a layer exists. In any case it is not removed while this is alive.
    pub(crate) fn claim_layer(&self, chain: &Digest) -> Result<bool> {
        let _lock = StoreLock::shared(&self.store.root)?;
        let mark = self.temp_dir.directory("keep")?.join(chain.hex());
        fs::write(&mark, b"").map_err(Error::system("write", &mark))?;
        Ok(self.store.layer(chain).symlink_metadata().is_ok())
    }

    /// The file into which the compressed form of a layer is downloaded.
    pub(crate) fn download_file(&self, number: usize) -> PathBuf {
        self.temp_dir.path().join(format!("{number}.download"))
    }

    /// Unpacks a layer into the temporary directory. Blocks.
    pub(crate) fn unpack(
        &self,
        number: usize,
        source: impl Read,
        expected: &ExpectedLayer,
    ) -> Result<UnpackedLayer> {
        let layer_dir = self.layer_dir(number);
        let result = self.try_unpack(number, source, expected);
        if result.is_err() {
            // Immediately, not on drop: if the disk is full, others need the space.
            let _ = unpack::remove_at(rustix::fs::CWD, layer_dir.as_os_str());
        }
        let diff = expected.diff.map_or_else(String::new, |diff| format!(" {diff}"));
        result.map_err(|error| error.within(&format!("failed to extract layer{diff}")))
    }

    fn try_unpack(
        &self,
        number: usize,
        source: impl Read,
        expected: &ExpectedLayer,
    ) -> Result<UnpackedLayer> {
        let layer_dir = self.layer_dir(number);
        // From an earlier attempt.
        unpack::remove_at(rustix::fs::CWD, layer_dir.as_os_str())
            .map_err(Error::system("remove", &layer_dir))?;
        let layer_dir = layer_dir.join("fs");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&layer_dir)
            .map_err(Error::system("make", &layer_dir))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&layer_dir, mode).map_err(Error::system("chmod", &layer_dir))?;
        let limits = &self.store.settings.limits;
        let mut unpacked =
            unpack::unpack_layer(source, &layer_dir, self.store.layer_format, expected, limits)?;
        // Not kept in memory, because a layer may have to wait long for those below it.
        self.write_implied(number, &std::mem::take(&mut unpacked.implied))?;
        Ok(unpacked)
    }

    /// Writes the directories without an entry into a file, children first.
    fn write_implied(&self, number: usize, implied: &[Vec<u8>]) -> Result<()> {
        let path = self.implied_file(number);
        let write = || {
            let mut file = BufWriter::new(File::create(&path)?);
            for directory in implied.iter().rev() {
                file.write_all(directory)?;
                file.write_all(&[0])?;
            }
            file.flush()
        };
        write().map_err(Error::system("write", &path))
    }

    /// Moves an unpacked layer into place. The layers below must exist.
    pub(crate) fn commit_layer(
        &self,
        content: &ImageContent,
        number: usize,
        unpacked: &UnpackedLayer,
    ) -> Result<()> {
        let layer_dir = self.layer_dir(number);
        let below: Vec<_> =
            content.layers[..number].iter().map(|layer| self.store.layer(&layer.chain)).collect();
        let implied = self.implied_file(number);
        let listed = File::open(&implied).map_err(Error::system("open", &implied))?;
        let listed = BufReader::new(listed).split(0);
        inherit_attributes(&layer_dir.join("fs"), listed, &below, self.store.layer_format)?;
        fs::remove_file(&implied).map_err(Error::system("remove", &implied))?;
        let json = serde_json::to_vec(&unpacked.usage).map_err(|why| Error::io("write", why.into()))?;
        let file = layer_dir.join("layer.json");
        fs::write(&file, json).map_err(Error::system("write", &file))?;
        let target = self.store.layers().join(content.layers[number].chain.hex());
        match fs::rename(&layer_dir, &target) {
            // Another process has stored the same layer.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                unpack::remove_at(rustix::fs::CWD, layer_dir.as_os_str())
                    .map_err(Error::system("remove", &layer_dir))
            }
            answer => answer.map_err(Error::system("rename", &target)),
        }
    }

    /// Records the image in the index, once all its layers exist. Blocks.
    pub(crate) fn commit(
        &self,
        content: &ImageContent,
        manifest: Option<&[u8]>,
        size: u64,
        names: &ImageNames,
        origin: ImageOrigin,
    ) -> Result<StoredImage> {
        let root = &self.store.root;
        // After a power loss, an image in the index must have its files.
        let directory = File::open(root).map_err(Error::system("open", root))?;
        rustix::fs::syncfs(&directory).map_err(Error::system("sync", root))?;
        let _lock = StoreLock::exclusive(root)?;
        index::replace(root, &self.store.blob(&content.id), &content.config)?;
        let mut index = Index::read(root)?;
        for (id, image) in &mut index.images {
            if *id != content.id {
                // A name refers to one image. An image without names is still found by digest and id.
                names.tags.iter().chain(&names.digests).for_each(|name| {
                    image.tags.remove(name);
                    image.digests.remove(name);
                });
            }
        }
        let record = index.images.entry(content.id).or_default();
        record.tags.extend(names.tags.iter().cloned());
        record.digests.extend(names.digests.iter().cloned());
        record.size = size;
        match origin {
            ImageOrigin::Import => record.access.allow_everyone(),
            ImageOrigin::Pull { repository, credentials } => {
                record.access.allow(&repository, credentials);
            }
        }
        record.layers = content.layers.iter().map(|layer| layer.chain).collect();
        if let Some(manifest) = manifest {
            let digest = Digest::of(manifest);
            index::replace(root, &self.store.blob(&digest), manifest)?;
            record.manifest = Some(digest);
        }
        let stored = index::load(&self.store, &content.id, record)?;
        index.write(root)?;
        Ok(stored)
    }

    fn implied_file(&self, number: usize) -> PathBuf {
        self.temp_dir.path().join(format!("{number}.implied"))
    }

    fn layer_dir(&self, number: usize) -> PathBuf {
        self.temp_dir.path().join(number.to_string())
    }
}
