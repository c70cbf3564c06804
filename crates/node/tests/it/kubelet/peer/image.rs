//! An image made of a static busybox, for pods and for the sandbox around them; no registry is asked.

use std::{os::unix::fs::PermissionsExt as _, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::json;

use super::machine::run;
use crate::kubelet::{
    case::{ENTRY_POINT, IMAGE},
    contents::sha256,
};

/// The image of the process that holds a pod's namespaces.
pub(super) const SANDBOX: &str = "vk.test/sandbox:1";

/// What the image puts into the environment.
pub(super) const PATH: &str = "/bin";

/// Prints what the container was started with and what it sees, a line for each thing.
const LOOK: &str = include_str!("look.sh");

/// Writes an archive with both images, and returns its path.
pub(super) fn build(folder: &Path) -> String {
    let root = folder.join("root");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    for name in ["proc", "tmp", "v"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    let busybox = root.join("bin/busybox");
    std::fs::copy("/bin/busybox", &busybox).expect("busybox-static is installed");
    let list = Command::new(&busybox).arg("--list").output().unwrap();
    for applet in String::from_utf8(list.stdout).unwrap().lines().filter(|&applet| applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    script(&root.join("look"), LOOK);
    script(&root.join(&ENTRY_POINT[1..]), "#!/bin/sh\n. /look\n");
    // For containers that must not end.
    script(&root.join("stay"), "#!/bin/sh\n. /look\nexec sleep 2147483647\n");

    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (layer, root) = (file("layer.tar"), file("root"));
    run("tar", &["--sort=name", "--owner=0", "--group=0", "--mtime=@0", "-C", &root, "-cf", &layer, "."]);
    let sum = sha256(&std::fs::read(&layer).unwrap());
    let config = |entry_point: &[&str]| {
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Entrypoint": entry_point, "Env": [format!("PATH={PATH}")]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
        })
    };
    let write =
        |name: &str, value: serde_json::Value| std::fs::write(folder.join(name), value.to_string()).unwrap();
    write("probe.json", config(&[ENTRY_POINT]));
    write("sandbox.json", config(&["/bin/sleep", "2147483647"]));
    write(
        "manifest.json",
        json!([
            {"Config": "probe.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]},
            {"Config": "sandbox.json", "RepoTags": [SANDBOX], "Layers": ["layer.tar"]},
        ]),
    );
    let archive = file("image.tar");
    let parts = ["manifest.json", "probe.json", "sandbox.json", "layer.tar"];
    let mut args = vec!["-C", folder.to_str().unwrap(), "-cf", &archive];
    args.extend(parts);
    run("tar", &args);
    archive
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
