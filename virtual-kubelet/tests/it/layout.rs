//! The layout of the workspace: which crate may depend on which, as ARCHITECTURE.md draws it, and which names are not used.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The only module that may contain `unsafe` code.
const UNSAFE_MODULE: &str = "providers/local/src/sys";

/// Crates at the bottom, on which all others may depend.
const BOTTOM: [&str; 5] = ["vk-provider", "vk-spdy", "vk-supervisor", "vk-files", "vk-fit"];

/// Words that no file, module or type name may contain: metaphors of earlier versions of this code.
const FORBIDDEN_WORDS: [&str; 39] = [
    "anchor",
    "catalogue",
    "craft",
    "deed",
    "door",
    "forge",
    "gated",
    "ground",
    "guest",
    "guise",
    "house",
    "lane",
    "lean",
    "leftover",
    "leftovers",
    "life",
    "lobby",
    "looking",
    "pulse",
    "resident",
    "roll",
    "room",
    "rooms",
    "shelf",
    "sizing",
    "standing",
    "stray",
    "strays",
    "survey",
    "tape",
    "telling",
    "told",
    "trouble",
    "troubles",
    "twin",
    "twins",
    "word",
    "words",
    "written",
];

/// Names that say too little by themselves, but are fine as part of a longer name (`LogLevel`).
const FORBIDDEN_NAMES: [&str; 20] = [
    "admitting",
    "answers",
    "comparing",
    "gate",
    "known",
    "level",
    "library",
    "look",
    "machine",
    "make",
    "missed",
    "note",
    "open",
    "parts",
    "refusal",
    "shared",
    "slot",
    "term",
    "terms",
    "wanted",
];

/// Words in `-ing` that are nouns. Other gerunds are not file names.
const NOUNS: [&str; 11] = [
    "binding",
    "encoding",
    "finding",
    "housekeeping",
    "ping",
    "recording",
    "ring",
    "scheduling",
    "streaming",
    "string",
    "testing",
];

/// The crates of this workspace that a crate may depend on.
fn allowed(name: &str) -> Option<Vec<&'static str>> {
    let engines = ["vk-pod-engine", "vk-container-group"];
    Some(match name {
        // The emulator of a cloud knows only its wire protocol: it shares no type and no signer with the provider.
        "vk-provider" | "vk-eci-emulator" => vec!["vk-supervisor"],
        "vk-supervisor" | "vk-control-plane" => vec![],
        _ if BOTTOM.contains(&name) => vec!["vk-provider"],
        "vk-streaming" => vec!["vk-provider", "vk-spdy"],
        "vk-kube" => vec!["vk-supervisor"],
        "vk-node" | "vk-server" | "vk-placement" => [&BOTTOM[..], &["vk-streaming", "vk-kube"]].concat(),
        "vk-testing" => {
            vec!["vk-control-plane", "vk-eci-emulator", "vk-kube", "vk-provider", "vk-supervisor"]
        }
        _ if engines.contains(&name) => vec!["vk-provider", "vk-files", "vk-supervisor"],
        "vk-provider-cluster" => vec!["vk-provider", "vk-supervisor", "vk-fit", "vk-kube", "vk-streaming"],
        // Providers on container groups may use the client of the streaming protocols, for exec only.
        "vk-provider-eci" => {
            [&["vk-provider", "vk-supervisor", "vk-files", "vk-streaming"], &engines[1..]].concat()
        }
        _ if name.starts_with("vk-provider-") => {
            [&["vk-provider", "vk-supervisor", "vk-files", "vk-fit"], &engines[..]].concat()
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

/// The packages of this workspace with their normal dependencies, without those for tests and builds.
fn workspace_packages() -> BTreeMap<String, BTreeSet<String>> {
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

/// Every package that is compiled into `root` on this platform, with all features.
fn dependency_tree(root: &str) -> BTreeSet<String> {
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

/// All Rust files of the workspace, relative to its root.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(WORKSPACE);
    let mut folders = ["bench", "crates", "providers", "virtual-kubelet"].map(PathBuf::from).to_vec();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).expect("read a folder").flatten() {
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.extend((entry.file_name() != "target").then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(Path::new(WORKSPACE).join(path)).expect("read a source file")
}

/// The lower-case words of a name in snake, kebab or camel case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous = '_';
    for letter in name.chars() {
        if !letter.is_alphanumeric() || letter.is_uppercase() && previous.is_lowercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphanumeric()) {
            word.extend(letter.to_lowercase());
        }
        previous = letter;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn is_forbidden(name: &str) -> bool {
    let words = words_of(name);
    words.iter().any(|word| FORBIDDEN_WORDS.contains(&word.as_str()))
        || FORBIDDEN_NAMES.contains(&words.concat().as_str())
}

fn is_gerund(name: &str) -> bool {
    let words = words_of(name);
    words.last().is_some_and(|word| word.ends_with("ing") && !NOUNS.contains(&word.as_str()))
}

/// The name of a type or module that a line declares.
fn declared_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(visible) = rest.strip_prefix("pub") {
        rest = match visible.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1.trim_start(),
            None => visible.trim_start(),
        };
    }
    rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let kinds = ["struct ", "enum ", "trait ", "mod ", "type ", "union "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len());
    Some(&name[..end]).filter(|name| !name.is_empty())
}

#[test]
fn dependencies_point_one_way() {
    let packages = workspace_packages();
    assert!(packages.len() > 5, "too few packages: {packages:?}");
    for (name, dependencies) in &packages {
        if ["virtual-kubelet", "vk-bench"].contains(&name.as_str()) {
            continue; // They are at the top and may depend on everything.
        }
        let allowed = allowed(name)
            .unwrap_or_else(|| panic!("no rule for crate {name}: add one here and to ARCHITECTURE.md"));
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
    let tree = dependency_tree("vk-provider");
    assert!(tree.contains("k8s-openapi"), "{tree:?}");
    for unwanted in ["kube", "kube-client", "hyper", "axum", "reqwest", "rustls"] {
        assert!(!tree.contains(unwanted), "vk-provider depends on {unwanted}");
    }
}

#[test]
fn there_is_one_tls_stack() {
    let tree = dependency_tree("virtual-kubelet");
    assert!(tree.contains("aws-lc-rs") && tree.contains("rustls"), "{tree:?}");
    for unwanted in ["ring", "openssl-sys", "native-tls", "schannel"] {
        assert!(!tree.contains(unwanted), "virtual-kubelet depends on {unwanted}");
    }
}

#[test]
fn the_binary_contains_no_test_code() {
    let tree = dependency_tree("virtual-kubelet");
    assert!(tree.contains("vk-control-plane"), "{tree:?}");
    for unwanted in ["vk-testing", "vk-bench", "proptest"] {
        assert!(!tree.contains(unwanted), "virtual-kubelet depends on {unwanted}");
    }
}

#[test]
fn unsafe_code_is_in_one_module() {
    let inside = |path: &Path| {
        path.starts_with(UNSAFE_MODULE) || path == Path::new(UNSAFE_MODULE).with_extension("rs")
    };
    let allows = |path: &Path| {
        read(path).lines().any(|line| line.trim_start().starts_with('#') && line.contains("unsafe_code"))
    };
    let found: Vec<PathBuf> = sources().into_iter().filter(|path| !inside(path) && allows(path)).collect();
    assert_eq!(found, Vec::<PathBuf>::new(), "code that needs `unsafe` belongs in {UNSAFE_MODULE}");
}

#[test]
fn files_modules_and_types_have_names_of_the_field() {
    let mut found = BTreeSet::new();
    for path in sources() {
        for part in path.with_extension("").ancestors() {
            let name = part.file_name().unwrap_or_default().to_string_lossy();
            if is_forbidden(&name) {
                found.insert(format!("{}: name of a file or folder", part.display()));
            } else if is_gerund(&name) {
                found.insert(format!("{}: a gerund", part.display()));
            }
        }
        for name in read(&path).lines().filter_map(declared_name).filter(|name| is_forbidden(name)) {
            found.insert(format!("{}: declares {name}", path.display()));
        }
    }
    let list: Vec<&str> = found.iter().map(String::as_str).collect();
    assert!(found.is_empty(), "{} names to change:\n{}", found.len(), list.join("\n"));
}

#[test]
fn names_are_split_into_words() {
    assert_eq!(words_of("OwnWords"), ["own", "words"]);
    assert_eq!(words_of("pod_store"), ["pod", "store"]);
    assert_eq!(words_of("e2e-node"), ["e2e", "node"]);
    assert!(is_forbidden("OwnWords") && is_forbidden("Level") && !is_forbidden("LogLevel"));
    assert!(is_gerund("admitting") && !is_gerund("streaming"));
    assert_eq!(declared_name("pub(crate) struct Roll<'a> {"), Some("Roll"));
    assert_eq!(declared_name("    mod tests {"), Some("tests"));
    assert_eq!(declared_name("let mode = 1;"), None);
}
