//! The house stays in order: which crate may depend on which, as ARCHITECTURE.md draws it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The lowest crates: the contract and what needs nothing else of ours.
const BOTTOM: [&str; 4] = ["vk-provider", "vk-spdy", "vk-supervisor", "vk-files"];

/// What the other crates may depend on, of ours.
fn allowed(name: &str) -> Option<Vec<&'static str>> {
    let engines = ["vk-pod-engine", "vk-container-group"];
    Some(match name {
        "vk-spdy" | "vk-supervisor" => Vec::new(),
        "vk-provider" => vec!["vk-supervisor"],
        "vk-files" => vec!["vk-provider"],
        "vk-streaming" => vec!["vk-provider", "vk-spdy"],
        "vk-kube" => vec!["vk-supervisor"],
        "vk-node" | "vk-server" | "vk-placement" => [&BOTTOM[..], &["vk-streaming", "vk-kube"]].concat(),
        "vk-testing" => vec!["vk-provider", "vk-kube"],
        _ if engines.contains(&name) => vec!["vk-provider", "vk-files", "vk-supervisor"],
        "vk-provider-cluster" => vec!["vk-provider", "vk-supervisor", "vk-kube", "vk-streaming"],
        _ if name.starts_with("vk-provider-") => {
            [&["vk-provider", "vk-supervisor", "vk-files"], &engines[..]].concat()
        }
        _ => return None,
    })
}

fn cargo(arguments: &[&str]) -> String {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(program)
        .args(arguments)
        .args(["--offline", "--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo writes text")
}

/// Packages of ours, with their dependencies outside of tests and builds.
fn ours() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps"]);
    let workspace: Value = serde_json::from_str(&metadata).expect("cargo metadata is JSON");
    let packages = workspace["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let normal = dependencies.iter().filter(|dependency| dependency["kind"].is_null());
            let names = normal.map(|dependency| dependency["name"].as_str().unwrap_or_default().to_owned());
            (package["name"].as_str().unwrap_or_default().to_owned(), names.collect())
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let packages = ours();
    assert!(packages.len() > 5, "too few packages: {packages:?}");
    for (name, dependencies) in &packages {
        if ["virtual-kubelet", "vk-bench"].contains(&name.as_str()) {
            continue; // They stand on top and see everything.
        }
        let allowed = allowed(name).unwrap_or_else(|| {
            panic!("{name} has no place in the house: give it one here and in ARCHITECTURE.md")
        });
        for dependency in dependencies.iter().filter(|dependency| packages.contains_key(*dependency)) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} may not depend on {dependency}, only on {allowed:?}"
            );
        }
    }
}

#[test]
fn the_contract_needs_no_client_and_no_http() {
    let reached = reached_from("vk-provider");
    assert!(reached.contains("k8s-openapi"), "{reached:?}");
    for unwanted in ["kube", "kube-client", "hyper", "axum", "reqwest", "rustls"] {
        assert!(!reached.contains(unwanted), "vk-provider pulls in {unwanted}");
    }
}

#[test]
fn there_is_one_tls_stack() {
    let reached = reached_from("virtual-kubelet");
    assert!(reached.contains("aws-lc-rs") && reached.contains("rustls"), "{reached:?}");
    for unwanted in ["ring", "openssl-sys", "native-tls", "schannel"] {
        assert!(!reached.contains(unwanted), "virtual-kubelet pulls in {unwanted}");
    }
}

#[test]
fn unsafe_code_has_one_room() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let room = root.join("providers/local/src/sys");
    let mut folders =
        vec![root.join("crates"), root.join("providers"), root.join("virtual-kubelet"), root.join("bench")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be read").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a source can be read");
                let allows = text
                    .lines()
                    .any(|line| line.trim_start().starts_with('#') && line.contains("unsafe_code"));
                let inside = path.starts_with(&room) || path == room.with_extension("rs");
                found.extend((allows && !inside).then_some(path));
            }
        }
    }
    assert_eq!(found, Vec::<PathBuf>::new(), "what needs `unsafe` belongs into providers/local/src/sys");
}

/// Every package that is compiled into this one on this platform, with all its features.
fn reached_from(root: &str) -> BTreeSet<String> {
    let tree = [
        "tree",
        "--all-features",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--package",
        root,
    ];
    cargo(&tree).lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}
