//! The root of a container: busybox, and what a minimal image has.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::limits::octal;

const BUSYBOX: &str = "/bin/busybox";
/// Devices that every container has.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// What all roots have in common.
pub(super) struct Base {
    bin: PathBuf,
}

/// A mount in a container.
#[derive(Debug)]
pub(super) struct Mount {
    pub(super) source: PathBuf,
    /// On the host.
    pub(super) target: PathBuf,
    pub(super) is_read_only: bool,
}

// === impl Base ===

impl Base {
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let bin = folder.join("bin");
        fs::create_dir_all(&bin)?;
        // A process of its own copies it: nothing that this process starts meanwhile may have the copy open for writing, because then
        // it could not be run.
        let copied = Command::new(BUSYBOX).args(["cp", BUSYBOX]).arg(&bin).output();
        let copied = copied.map_err(|error| {
            io::Error::new(error.kind(), format!("run {BUSYBOX}, which must be static: {error}"))
        })?;
        if !copied.status.success() {
            let said = String::from_utf8_lossy(&copied.stderr).trim().to_owned();
            return Err(io::Error::other(format!("copy {BUSYBOX}: {said}")));
        }
        let list = Command::new(bin.join("busybox")).arg("--list").output()?;
        for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
            symlink("busybox", bin.join(applet))?;
        }
        Ok(Self { bin })
    }

    /// Makes the root of a container, and says what to mount.
    pub(super) fn make_root(&self, root: &Path) -> io::Result<Vec<Mount>> {
        for folder in
            ["bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/run", "var/tmp"]
        {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        )?;
        fs::write(root.join("etc/group"), "root:x:0:\nnobody:x:65534:\n")?;
        let mut mounts =
            vec![Mount { source: self.bin.clone(), target: root.join("bin"), is_read_only: true }];
        for device in DEVICES {
            let target = root.join("dev").join(device);
            fs::write(&target, "")?;
            mounts.push(Mount { source: Path::new("/dev").join(device), target, is_read_only: false });
        }
        let terminals = root.join("dev/pts");
        fs::create_dir_all(&terminals)?;
        mounts.push(Mount { source: "/dev/pts".into(), target: terminals, is_read_only: false });
        Ok(mounts)
    }
}

/// Writes name resolution as the request says.
pub(super) fn write_network_files(root: &Path, group: &Value, ip: &str) -> io::Result<()> {
    let list = |parent: &Value, name: &str| -> Vec<String> {
        let items = parent[name].as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let host = host_name(group);
    let mut hosts = format!("127.0.0.1\tlocalhost\n{ip}\t{host}\n");
    for alias in group["HostAliase"].as_array().into_iter().flatten() {
        let address = alias["Ip"].as_str().unwrap_or_default();
        let _ = writeln!(hosts, "{address}\t{}", list(alias, "Hostname").join(" "));
    }
    fs::write(root.join("etc/hosts"), hosts)?;
    fs::write(root.join("etc/hostname"), format!("{host}\n"))?;
    let dns = &group["DnsConfig"];
    let mut text = String::new();
    for server in list(dns, "NameServer") {
        let _ = writeln!(text, "nameserver {server}");
    }
    let searches = list(dns, "Search");
    if !searches.is_empty() {
        let _ = writeln!(text, "search {}", searches.join(" "));
    }
    let options: Vec<String> = dns["Option"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|option| {
            let name = option["Name"].as_str().unwrap_or_default();
            option["Value"]
                .as_str()
                .filter(|value| !value.is_empty())
                .map_or_else(|| name.to_owned(), |value| format!("{name}:{value}"))
        })
        .collect();
    if !options.is_empty() {
        let _ = writeln!(text, "options {}", options.join(" "));
    }
    fs::write(root.join("etc/resolv.conf"), text)
}

pub(super) fn host_name(group: &Value) -> &str {
    group["HostName"].as_str().or_else(|| group["ContainerGroupName"].as_str()).unwrap_or("eci")
}

/// Makes the group's volumes, once.
pub(super) fn make_volumes(folder: &Path, group: &Value) -> io::Result<()> {
    for volume in group["Volume"].as_array().into_iter().flatten() {
        let path = folder.join(volume["Name"].as_str().unwrap_or_default());
        if path.exists() {
            continue;
        }
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        let files = &volume["ConfigFileVolume"];
        let default = files["DefaultMode"].as_i64().and_then(octal).unwrap_or(0o644);
        for file in files["ConfigFileToPath"].as_array().into_iter().flatten() {
            let target = path.join(file["Path"].as_str().unwrap_or_default());
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            let content = BASE64_STANDARD.decode(file["Content"].as_str().unwrap_or_default());
            fs::write(&target, content.map_err(io::Error::other)?)?;
            let mode = file["Mode"].as_i64().and_then(octal).unwrap_or(default);
            fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// Makes the places where volumes are mounted in a container.
pub(super) fn make_mounts(
    root: &Path,
    volumes: &Path,
    group: &Value,
    spec: &Value,
) -> io::Result<Vec<Mount>> {
    let mut mounts = Vec::new();
    for mount in spec["VolumeMount"].as_array().into_iter().flatten() {
        let text = |name: &str| mount[name].as_str().unwrap_or_default();
        let mut source = volumes.join(text("Name"));
        let sub_path = text("SubPath").trim_start_matches('/');
        if !sub_path.is_empty() {
            source = source.join(sub_path);
            if !source.exists() {
                fs::create_dir_all(&source)?;
                fs::set_permissions(&source, fs::Permissions::from_mode(0o777))?;
            }
        }
        let target = root.join(text("MountPath").trim_start_matches('/'));
        if source.is_dir() {
            fs::create_dir_all(&target)?;
        } else if !target.exists() {
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(&target, "")?;
        }
        let mut all = group["Volume"].as_array().into_iter().flatten();
        let is_files =
            all.any(|volume| volume["Name"] == text("Name") && volume["Type"] == "ConfigFileVolume");
        mounts.push(Mount { source, target, is_read_only: is_files || mount["ReadOnly"] == true });
    }
    Ok(mounts)
}
