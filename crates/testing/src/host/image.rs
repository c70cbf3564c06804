//! Container images built from the host's static busybox, without a registry.

use std::{
    collections::BTreeMap,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use super::{make_folder, run, write};

/// The sandbox (pause) image.
pub const SANDBOX: &str = "vk.test/sandbox:1";
/// The default image of pods in tests.
pub const BUSYBOX: &str = "vk.test/busybox:1";
/// The host's busybox, which must be static.
const HERE: &str = "/bin/busybox";
/// `PATH` of all images.
pub const PATH: &str = "/bin";

/// Runs until SIGTERM, and then ends at once.
const STAY: &str = "#!/bin/sh\ntrap 'exit 0' TERM INT\nwhile :; do sleep 3600 & wait $!; done\n";
/// Ignores SIGTERM.
const STUBBORN: &str = "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n";
/// Answers gRPC health checks on port 9000 with status `$1`; 1 is SERVING.
const GRPC: &str = "#!/bin/sh\nexport ANSWER=${1:-1}\nexec nc -ll -p 9000 -e /grpc-answer\n";
const GRPC_ANSWER: &str = include_str!("grpc-answer.sh");

/// A container image.
#[derive(Clone, Debug)]
pub struct Image {
    name: String,
    entry_point: Vec<String>,
    user: String,
    architecture: String,
    files: BTreeMap<String, String>,
}

/// The config and the layers of a built image.
pub(super) struct BuiltImage {
    pub(super) config: String,
    /// The files of the layers.
    pub(super) layers: Vec<PathBuf>,
}

// === impl Image ===

impl Image {
    /// An image with only busybox, for the architecture of this host.
    pub fn new(name: &str) -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            name: name.to_owned(),
            entry_point: Vec::new(),
            user: String::new(),
            architecture: architecture.to_owned(),
            files: BTreeMap::new(),
        }
    }

    /// The images that tests use: `vk.test/busybox` with tags `1` and `2`, and images with a user.
    pub fn standard() -> Vec<Self> {
        let with_files = |name: &str| {
            Self::new(name)
                .entry_point(&["/stay"])
                .file("/etc/passwd", "root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n")
                .file("/etc/group", "root:x:0:\napp:x:1000:\nextra:x:2000:app\n")
                .file("/stay", STAY)
                .file("/stubborn", STUBBORN)
                .file("/grpc", GRPC)
                .file("/grpc-answer", GRPC_ANSWER)
        };
        vec![
            with_files(BUSYBOX),
            with_files("vk.test/busybox:2").file("/second", ""),
            with_files("vk.test/named-user:1").user("app"),
            with_files("vk.test/numeric-user:1").user("1000"),
        ]
    }

    /// Changes the name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets the entry point.
    #[must_use]
    pub fn entry_point(mut self, words: &[&str]) -> Self {
        self.entry_point = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets the user.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.user);
        self
    }

    /// Sets the architecture.
    #[must_use]
    pub fn architecture(mut self, architecture: &str) -> Self {
        architecture.clone_into(&mut self.architecture);
        self
    }

    /// Adds an executable file with this absolute path.
    #[must_use]
    pub fn file(mut self, path: &str, contents: &str) -> Self {
        self.files.insert(path.to_owned(), contents.to_owned());
        self
    }

    /// Writes an archive of images to `folder`, as `docker save` does, and returns its path.
    pub fn save(folder: &Path, images: &[Self]) -> PathBuf {
        make_folder(folder);
        archive(folder, images)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn platform(&self) -> &str {
        &self.architecture
    }

    /// Builds the layers in `folder`, which other images share.
    pub(super) fn build(&self, folder: &Path) -> BuiltImage {
        let mut layers = vec![base(folder)];
        if !self.files.is_empty() {
            let list = json!(self.files).to_string();
            let layer = folder.join(format!("layer-{}", &sha256(list.as_bytes())[..12]));
            for (path, contents) in &self.files {
                let file = layer.join(path.trim_start_matches('/'));
                make_folder(file.parent().unwrap_or(&layer));
                write(&file, contents);
                let mode = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(&file, mode).expect("set permissions");
            }
            layers.push(pack(&layer));
        }
        let sums: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", sum_of(layer))).collect();
        let mut settings = json!({"Entrypoint": self.entry_point, "Env": [format!("PATH={PATH}")]});
        if !self.user.is_empty() {
            settings["User"] = json!(self.user);
        }
        let config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": sums},
        });
        BuiltImage { config: config.to_string(), layers }
    }
}

/// Writes an archive with these images and the sandbox image, and returns its path.
pub(super) fn archive(folder: &Path, images: &[Image]) -> PathBuf {
    let sandbox = Image::new(SANDBOX).entry_point(&["/bin/sleep", "2147483647"]);
    let mut files = vec!["manifest.json".to_owned()];
    let mut manifest = Vec::new();
    for (number, image) in images.iter().chain([&sandbox]).enumerate() {
        let built = image.build(folder);
        let config = format!("config-{number}.json");
        write(&folder.join(&config), &built.config);
        let layers: Vec<String> = built.layers.iter().map(|layer| name_of(layer)).collect();
        manifest.push(json!({"Config": config, "RepoTags": [image.name], "Layers": layers}));
        files.push(config);
        files.extend(layers);
    }
    files.sort();
    files.dedup();
    write(&folder.join("manifest.json"), Value::from(manifest).to_string());
    let archive = folder.join("images.tar");
    let (folder, out) = (folder.to_string_lossy(), archive.to_string_lossy());
    let mut args = vec!["-C", &*folder, "-cf", &*out];
    args.extend(files.iter().map(String::as_str));
    run("tar", &args);
    archive
}

/// The layer that all images share: busybox with a link for each applet.
fn base(folder: &Path) -> PathBuf {
    let root = folder.join("base");
    if !root.exists() {
        for name in ["bin", "proc", "tmp", "v", "dev", "etc", "sys"] {
            make_folder(&root.join(name));
        }
        let mode = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(root.join("tmp"), mode).expect("write to our own folder");
        let busybox = root.join("bin/busybox");
        std::fs::copy(HERE, &busybox)
            .unwrap_or_else(|error| panic!("cannot copy {HERE} (is busybox-static installed?): {error}"));
        // Not the copy: a process that another thread starts may still hold it open for writing (ETXTBSY).
        let list = Command::new(HERE).arg("--list").output().expect("busybox runs");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        for applet in list.lines().filter(|&applet| applet != "busybox") {
            symlink("busybox", root.join("bin").join(applet)).expect("write to our own folder");
        }
    }
    pack(&root)
}

/// Packs a folder into a layer, reproducibly.
fn pack(folder: &Path) -> PathBuf {
    let layer = folder.with_extension("tar");
    if !layer.exists() {
        let (from, to) = (folder.to_string_lossy(), layer.to_string_lossy());
        run("tar", &["--sort=name", "--owner=0", "--group=0", "--mtime=@0", "-C", &*from, "-cf", &*to, "."]);
    }
    layer
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The SHA-256 digest of a file.
pub(super) fn sum_of(file: &Path) -> String {
    sha256(&std::fs::read(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display())))
}

/// The SHA-256 digest in hexadecimal notation.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    sum.as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
