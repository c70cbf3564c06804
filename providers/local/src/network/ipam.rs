//! IP address management: one file per sandbox, so that a crash leaves a complete file or none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use vk_pod_engine::backend::PortMapping;

use super::{Error, Subnet};
use crate::files;

/// The address and host ports of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attachment {
    pub(crate) sandbox: String,
    pub(crate) address: Ipv4Addr,
    /// Increases with each attached sandbox.
    pub(crate) serial: u64,
    pub(crate) ports: Vec<PortMapping>,
}

/// The addresses of a subnet.
#[derive(Debug)]
pub(crate) struct AddressPool {
    dir: PathBuf,
    subnet: Subnet,
    attached: BTreeMap<String, Attachment>,
    /// The address assigned last. Freed addresses are reused as late as possible, because other hosts may still send to
    /// them.
    last: Option<Ipv4Addr>,
    serial: u64,
    /// Increases with every change that affects the rules.
    version: u64,
}

// === impl AddressPool ===

impl AddressPool {
    /// Reads the files.
    pub(crate) fn open(dir: &Path, subnet: Subnet) -> Result<Self, Error> {
        let dir = dir.join("sandboxes");
        create_dir(&dir)?;
        let mut attached = BTreeMap::new();
        let listed = fs::read_dir(&dir).map_err(file("read", &dir))?;
        for entry in listed {
            let path = entry.map_err(file("read", &dir))?.path();
            // A temporary file is left over from a crash.
            if path.extension().is_none_or(|extension| extension != "json") {
                fs::remove_file(&path).map_err(file("remove", &path))?;
                continue;
            }
            if let Some(found) = read::<Attachment>(&path)? {
                attached.insert(found.sandbox.clone(), found);
            }
        }
        let newest = attached.values().max_by_key(|attached| attached.serial);
        let (last, serial) = newest.map_or((None, 0), |newest| (Some(newest.address), newest.serial));
        let mut addresses = Self { dir, subnet, attached, last, serial, version: 1 };
        if let Some(last) = read::<Last>(&addresses.last_file())? {
            addresses.last = Some(last.address);
            addresses.serial = addresses.serial.max(last.serial);
        }
        Ok(addresses)
    }

    /// All attached sandboxes.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &Attachment> {
        self.attached.values()
    }

    /// The entry of a sandbox.
    pub(crate) fn get(&self, sandbox: &str) -> Option<&Attachment> {
        self.attached.get(sandbox)
    }

    /// Assigns an address to a sandbox, or returns the one it has.
    pub(crate) fn reserve(&mut self, sandbox: &str, ports: &[PortMapping]) -> Result<Attachment, Error> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if sandbox.is_empty()
            || sandbox.starts_with('.')
            || sandbox.len() > 200
            || !sandbox.chars().all(legal)
        {
            return Err(Error::InvalidSandboxId(sandbox.to_owned()));
        }
        let before = self.attached.get(sandbox).filter(|before| self.subnet.contains(before.address));
        if let Some(before) = before
            && before.ports == ports
        {
            return Ok(before.clone());
        }
        let (address, serial) = match before {
            Some(before) => (before.address, before.serial),
            None => (self.next()?, self.serial + 1),
        };
        let attached = Attachment { sandbox: sandbox.to_owned(), address, serial, ports: ports.to_vec() };
        write(&self.file(sandbox), &attached)?;
        if serial > self.serial {
            (self.last, self.serial) = (Some(address), serial);
            write(&self.last_file(), &Last { address, serial })?;
        }
        self.attached.insert(sandbox.to_owned(), attached.clone());
        self.version += 1;
        Ok(attached)
    }

    /// The version of the current content.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Removes and returns the host ports of a sandbox, which keeps its address. Its file keeps the ports until the
    /// address is freed.
    pub(crate) fn close_ports(&mut self, sandbox: &str) -> Vec<PortMapping> {
        let ports = self.attached.get_mut(sandbox).map(|attached| std::mem::take(&mut attached.ports));
        self.version += 1;
        ports.unwrap_or_default()
    }

    /// Frees the address of a sandbox.
    pub(crate) fn free(&mut self, sandbox: &str) -> Result<(), Error> {
        if self.attached.contains_key(sandbox) {
            let path = self.file(sandbox);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(file("remove", &path)(error));
                }
                _ => {}
            }
            self.attached.remove(sandbox);
            self.version += 1;
        }
        Ok(())
    }

    /// The first free address after the last one assigned.
    fn next(&self) -> Result<Ipv4Addr, Error> {
        let used: BTreeSet<u32> = self.attached.values().map(|attached| attached.address.into()).collect();
        let (first, end) = self.subnet.pods();
        let (first, end) = (u32::from(first), u32::from(end));
        let begin = self.last.map_or(first, |last| u32::from(last).saturating_add(1));
        let begin = if (first..=end).contains(&begin) { begin } else { first };
        (begin..=end)
            .chain(first..begin)
            .find(|address| !used.contains(address))
            .map(Ipv4Addr::from)
            .ok_or(Error::Exhausted { subnet: self.subnet, used: self.attached.len() })
    }

    fn file(&self, sandbox: &str) -> PathBuf {
        self.dir.join(format!("{sandbox}.json"))
    }

    fn last_file(&self) -> PathBuf {
        self.dir.with_file_name("last.json")
    }
}

#[derive(Serialize, Deserialize)]
struct Last {
    address: Ipv4Addr,
    serial: u64,
}

/// Creates a directory that only this user can enter.
pub(super) fn create_dir(path: &Path) -> Result<(), Error> {
    files::create_private_dir(path).map_err(file("create", path))
}

/// Reads a JSON file. A malformed file counts as missing: the kernel state decides what exists.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    match files::read_json(path) {
        Err(error) if error.raw_os_error().is_none() => {
            tracing::warn!(%error, "ignoring an unreadable file of the pod network");
            Ok(None)
        }
        read => read.map_err(file("read", path)),
    }
}

/// Writes a JSON file atomically.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    files::write_json(path, value).map_err(file("write", path))
}

fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { doing, path, source }
}

#[cfg(test)]
mod tests;
