//! An image registry with a user name and a password.

use std::{
    fs::File,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::json;

use super::{HostResources, Image, image, make_folder, write};
use crate::{Process, eventually};

/// [`Registry::USER`] and [`Registry::PASSWORD`] in htpasswd format.
const ACCOUNTS: &str = "puller:$2b$05$abcdefghijklmnopqrstuu3Jd./u/rH1RxB6auX5v7gLP6uWhKCgG\n";
const SOON: Duration = Duration::from_secs(30);

/// A running docker-registry on a loopback port, over plain HTTP, which runtimes accept for loopback addresses.
#[derive(Debug)]
pub struct Registry {
    port: u16,
    _process: Process,
}

// === impl Registry ===

impl Registry {
    /// The user that may pull.
    pub const USER: &'static str = "puller";
    /// The user's password.
    pub const PASSWORD: &'static str = "let-me-in";

    /// Starts a registry with these images, whose names lose the part before the first slash. Its port is 5000 plus the number of the host
    /// resources, and its files are in their folder.
    pub async fn start(resources: &HostResources, images: &[Image]) -> Self {
        let folder = &resources.folder().join("registry");
        let port = 5000 + u16::from(resources.number());
        let store = folder.join("store");
        let work = folder.join("work");
        make_folder(&store);
        make_folder(&work);
        for image in images {
            put(&store, &work, image);
        }
        let accounts = folder.join("accounts");
        write(&accounts, ACCOUNTS);
        let config = json!({
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": store}},
            "http": {"addr": format!("127.0.0.1:{port}")},
            "auth": {"htpasswd": {"realm": "tests", "path": accounts}},
        });
        let file = folder.join("config.yml");
        write(&file, config.to_string());
        let log = File::create(folder.join("registry.log")).expect("a log file");
        let process = Process::spawn(
            Command::new("docker-registry")
                .arg("serve")
                .arg(&file)
                .env("OTEL_TRACES_EXPORTER", "none")
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("the same file"))
                .stderr(log),
        )
        .expect("docker-registry is installed: run `dev/setup tests`");
        let registry = Self { port, _process: process };
        eventually("the registry listens", SOON, || async {
            TcpStream::connect((Ipv4Addr::LOCALHOST, registry.port)).map(drop)
        })
        .await;
        registry
    }

    /// The registry part of image names.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A `.dockerconfigjson` that lets pods pull from it.
    pub fn docker_config(&self) -> String {
        json!({"auths": {self.address(): {"username": Self::USER, "password": Self::PASSWORD}}}).to_string()
    }
}

/// Writes an image to the registry's storage, in its folder layout.
fn put(store: &Path, work: &Path, image: &Image) {
    let built = image.build(work);
    let name = image.name().split_once('/').map_or_else(|| image.name(), |(_, name)| name);
    let (name, tag) = name.split_once(':').unwrap_or((name, "latest"));
    let root = store.join("docker/registry/v2");
    let repository = root.join("repositories").join(name);
    let blob = |bytes: &[u8]| -> String {
        let sum = image::sha256(bytes);
        let folder: PathBuf = root.join("blobs/sha256").join(&sum[..2]).join(&sum);
        make_folder(&folder);
        write(&folder.join("data"), bytes);
        sum
    };
    let link = |folder: PathBuf, sum: &str| {
        make_folder(&folder);
        write(&folder.join("link"), format!("sha256:{sum}"));
    };
    let part = |kind: &str, bytes: &[u8]| {
        let sum = blob(bytes);
        link(repository.join("_layers/sha256").join(&sum), &sum);
        json!({"mediaType": kind, "digest": format!("sha256:{sum}"), "size": bytes.len()})
    };
    let config = part("application/vnd.oci.image.config.v1+json", built.config.as_bytes());
    let layers: Vec<_> = built
        .layers
        .iter()
        .map(|layer| {
            let bytes = std::fs::read(layer).unwrap_or_else(|error| panic!("{}: {error}", layer.display()));
            part("application/vnd.oci.image.layer.v1.tar", &bytes)
        })
        .collect();
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers});
    let manifests = repository.join("_manifests");
    let revision = |value: &serde_json::Value| {
        let sum = blob(value.to_string().as_bytes());
        link(manifests.join("revisions/sha256").join(&sum), &sum);
        sum
    };
    let sum = revision(&manifest);
    // With an index, as multi-platform builders do: only the index names the platform of an image.
    let kind = "application/vnd.oci.image.index.v1+json";
    let platform = json!({"architecture": image.platform(), "os": "linux"});
    let entry = json!({"mediaType": manifest["mediaType"], "digest": format!("sha256:{sum}"),
        "size": manifest.to_string().len(), "platform": platform});
    let sum = revision(&json!({"schemaVersion": 2, "mediaType": kind, "manifests": [entry]}));
    link(manifests.join("tags").join(tag).join("current"), &sum);
    link(manifests.join("tags").join(tag).join("index/sha256").join(&sum), &sum);
}
